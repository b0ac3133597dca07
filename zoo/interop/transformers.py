"""Weights of transformers' layers and models in the zoo's own: the same numbers out, on the one contract."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.backbone import Backbone
from zoo.contract import SequenceMixer
from zoo.naming import unknown
from zoo.ops.precision import widest
from zoo.ops.rope import SCALINGS
from zoo.registry import create_mixer

Table = dict[str, str]
"""Our parameter -> theirs, by its path below their layer; several are put on top of each other, in rows."""

Fields = dict[str, tuple[object, object]]
"""A field of theirs -> its value, and the only value that the zoo can express."""

ONES = ""
"""In a table: a parameter that is a constant of theirs; ours is ones, and frozen."""


class Layer(NamedTuple):
    """How one of their layers becomes a mixer."""

    mixer: str
    weights: Table
    options: Callable[[Any], dict[str, Any]]
    fields: Callable[[Any], Fields]


class Family(NamedTuple):
    """Where a causal language model of theirs keeps its parts, by path."""

    embedding: str
    layers: str
    mixers: tuple[str, ...]
    """Below a layer: the name of its mixer is one of these."""
    norms: Table
    """Below a layer."""
    norm: str
    channel: str = ""
    """Below a layer; none where empty."""


def load_transformers(source: nn.Module | str | os.PathLike[str], *, verify: bool = True) -> SequenceMixer | Backbone:
    """Load one of transformers' layers or models as a mixer or model of the zoo; outputs, gradients and states agree.

        mixer = zoo.load_transformers(theirs.model.layers[0].self_attn)     # a layer: a SequenceMixer
        model = zoo.load_transformers(theirs)                               # a language model: a Backbone
        logits = model(tokens)

    Layers: MambaMixer, FalconMambaMixer, Mamba2Mixer, JambaMambaMixer, JambaAttention, LlamaAttention. Models: the
    ...ForCausalLM of these five; docs/transformers.md says what of each can be expressed. Every weight is copied, in
    its dtype, on its device, with its requires_grad; those that are one parameter here (queries, keys and values; gate
    and up) must agree in these. A head whose weight is the embedding's still is. FalconMamba's norms on dt, B and C
    have no weights: ours are ones and frozen. The embedding of a padding token, which transformers leaves out of
    training, is a parameter like the others.

    Args:
        source: the layer or model, or the folder (or name) of a pretrained model, which transformers loads.
        verify: run theirs on seeded random input, in its dtype and eval mode, and compare every layer with ours.

    Raises:
        ValueError: another kind of module, one with adapters or layers that are not transformers' own, a configuration
            or weights that the zoo cannot express (names the field), outputs that differ (names the first layer whose
            do), or a folder that transformers cannot load or that does not hold exactly the model's weights.
        ModuleNotFoundError: a folder is given and transformers is not installed; names the extra that brings it.
    """
    if not isinstance(source, (nn.Module, str, os.PathLike)):
        raise ValueError(
            f"source must be a layer or model of transformers, or a folder, got {type(source).__name__}: {source!r}"
        )
    theirs = source if isinstance(source, nn.Module) else _pretrained(source)
    kind = type(theirs).__name__
    if not _own(theirs) or kind not in {*LAYERS, *MODELS}:
        found = kind if _own(theirs) else f"{type(theirs).__module__}.{type(theirs).__qualname__}"
        raise ValueError(unknown("layer or model of transformers", found, [*LAYERS, *MODELS]))
    for path, module in theirs.named_modules():
        if not _own(module):
            found = f"{type(module).__module__}.{type(module).__qualname__}"
            raise ValueError(
                f"{kind}: {path} is a {found}, which is no layer of torch or transformers itself; "
                "merge adapters into the weights, and undo quantization, first"
            )
    weights = _Weights(theirs)
    try:
        ours = _model(theirs, MODELS[kind], weights) if kind in MODELS else _mixer(theirs, weights)
    except AttributeError as error:
        raise ValueError(f"{kind}: not built as transformers builds it: {error}") from error
    weights.fill(ours)
    if verify:
        _verify(theirs, ours)
    return ours.train(theirs.training)


def _own(module: nn.Module) -> bool:
    """Return whether the class is exactly one of torch's or transformers': adapters and quantized layers are others."""
    return type(module).__module__.startswith(("torch.nn.modules.", "transformers.models.", "transformers.activations"))


def _pretrained(source: str | os.PathLike[str]) -> nn.Module:
    try:
        from transformers import AutoModelForCausalLM
        from transformers.utils.peft_utils import find_adapter_config_file
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "loading a pretrained model needs transformers: pip install 'mixer-zoo[transformers]'", name="transformers"
        ) from None
    try:
        adapter = find_adapter_config_file(os.fspath(source))
    except OSError:  # neither a folder nor a name that a model could have
        raise ValueError(
            f"transformers cannot load {os.fspath(source)!r}: no such folder, and no model of that name within reach"
        ) from None
    if adapter is not None:
        raise ValueError(f"{source} holds an adapter (adapter_config.json): merge it and save the whole model first")
    try:
        load: Any = AutoModelForCausalLM.from_pretrained
        theirs, loaded = load(source, output_loading_info=True, ignore_mismatched_sizes=True)
    except Exception as error:  # of many kinds: files, their format, unknown configurations
        raise ValueError(f"transformers cannot load {source}: {' '.join(str(error).split())}") from error
    for names, misfit in (
        (loaded["mismatched_keys"], "has in another shape"),
        (loaded["missing_keys"], "lacks"),
        (loaded["unexpected_keys"], "holds, beyond the model,"),
    ):
        if names:
            paths = sorted(name if isinstance(name, str) else name[0] for name in names)
            raise ValueError(f"{source} {misfit} {_few(paths)}; valid is exactly the model's weights")
    return theirs


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _expect(theirs: object, fields: Fields) -> None:
    """Raise ValueError for the first field whose value the zoo cannot express."""
    for field, (value, expected) in fields.items():
        if value != expected:
            raise ValueError(
                f"{type(theirs).__name__}: the zoo cannot express {field}={value!r}; it can express {expected!r}"
            )


class _Weights:
    """Theirs under our names: all of them, each read once."""

    def __init__(self, theirs: nn.Module) -> None:
        self.theirs, self.kind = theirs, type(theirs).__name__
        self.unread = {id(parameter): path for path, parameter in theirs.named_parameters()}
        self.found: dict[str, nn.Parameter] = {}
        self.ones: list[str] = []

    def read(self, table: Table, their_path: str = "", our_path: str = "") -> None:
        """Copy what a table names, theirs below one path and ours below the other."""
        for name, paths in table.items():
            if paths == ONES:
                self.ones.append(_join(our_path, name))
                continue
            parts = [self._take(_join(their_path, path)) for path in paths.split()]
            kinds = {(str(part.dtype), str(part.device), f"requires_grad={part.requires_grad}") for part in parts}
            if len(kinds) > 1:
                raise ValueError(
                    f"{self.kind}: {', '.join(paths.split())} are one parameter in the zoo and must agree in dtype, "
                    f"device and requires_grad, got {' and '.join(' '.join(kind) for kind in sorted(kinds))}"
                )
            copied = torch.cat([part.detach() for part in parts]) if len(parts) > 1 else parts[0].detach().clone()
            self.found[_join(our_path, name)] = nn.Parameter(copied, parts[0].requires_grad)

    def _take(self, path: str) -> Tensor:
        owner, _, name = path.rpartition(".")
        weight, layer = self.theirs.get_parameter(path), self.theirs.get_submodule(owner)
        if self.unread.pop(id(weight), None) is None:
            raise ValueError(f"{self.kind}: {path} is read twice; only a head may share its weight, the embedding's")
        depthwise = type(layer) is nn.Conv1d and name == "weight"
        return weight.squeeze(1) if depthwise else weight

    def fill(self, ours: nn.Module) -> None:
        """Put every parameter into `ours`, which was built on the meta device."""
        if self.unread:
            raise ValueError(f"{self.kind}: the zoo has no place for {_few(list(self.unread.values()))}")
        shapes = {name: parameter.shape for name, parameter in ours.named_parameters()}
        like = next(iter(self.found.values()))
        for name in self.ones:
            self.found[name] = nn.Parameter(torch.ones(shapes[name], dtype=like.dtype, device=like.device), False)
        for name, weight in self.found.items():
            if weight.shape != shapes[name]:
                raise ValueError(
                    f"{self.kind}: what becomes {name} has shape {tuple(weight.shape)}; its configuration says "
                    f"{tuple(shapes[name])}"
                )
        trained = {name: weight.requires_grad for name, weight in self.found.items()}  # assignment overwrites it
        ours.load_state_dict(self.found, assign=True)
        for name, parameter in ours.named_parameters():
            parameter.requires_grad_(trained[name])


def _join(*path: str) -> str:
    return ".".join(part for part in path if part)


# Layers


def _mamba_options(theirs: Any) -> dict[str, Any]:
    return {
        "d_state": theirs.ssm_state_size,
        "d_conv": theirs.conv_kernel_size,
        "expand": max(1, theirs.intermediate_size // theirs.hidden_size),
    }


def _mamba_fields(theirs: Any) -> Fields:
    whole = max(1, theirs.intermediate_size // theirs.hidden_size) * theirs.hidden_size
    return {
        "hidden_act": (theirs.activation, "silu"),
        "use_bias": (theirs.in_proj.bias is not None or theirs.out_proj.bias is not None, False),
        "use_conv_bias": (theirs.conv1d.bias is not None, True),
        "intermediate_size": (theirs.intermediate_size, whole),
    }


def _ssm_options(theirs: Any) -> dict[str, Any]:
    return _mamba_options(theirs) | {"dt_rank": theirs.time_step_rank}


def _jamba_fields(theirs: Any) -> Fields:
    norms = (theirs.dt_layernorm, theirs.b_layernorm, theirs.c_layernorm)
    eps = [norm.variance_epsilon for norm in norms]
    return _mamba_fields(theirs) | {"rms_norm_eps of dt, B and C": (eps, [eps[0]] * 3)}


def _ssd_options(theirs: Any) -> dict[str, Any]:
    groups = theirs.intermediate_size // theirs.norm.group_size
    return _mamba_options(theirs) | {"d_head": theirs.head_dim, "n_groups": theirs.n_groups, "norm_groups": groups}


def _ssd_fields(theirs: Any) -> Fields:
    return _mamba_fields(theirs) | {
        "time_step_limit": (tuple(theirs.time_step_limit), (0.0, float("inf"))),
        "layer_norm_epsilon": (theirs.norm.variance_epsilon, 1e-5),
    }


def _attention_options(theirs: Any) -> dict[str, Any]:
    return {
        "n_heads": theirs.config.num_attention_heads,
        "d_head": theirs.head_dim,
        "n_kv_heads": theirs.config.num_key_value_heads,
    }


def _attention_fields(theirs: Any) -> Fields:
    biased = any(layer.bias is not None for layer in (theirs.q_proj, theirs.k_proj, theirs.v_proj, theirs.o_proj))
    return {
        "attention_bias": (biased, False),
        "attention_dropout": (theirs.attention_dropout, 0.0),
        "scaling": (theirs.scaling, theirs.head_dim**-0.5),
        "is_causal": (bool(theirs.is_causal and getattr(theirs.config, "is_causal", True)), True),
    }


_TRAINED = "original_max_position_embeddings"


def _rope_options(theirs: Any) -> dict[str, Any]:
    longest, rope = theirs.config.max_position_embeddings, theirs.config.rope_parameters
    options = _attention_options(theirs) | {"position": "rope", "rope_base": float(rope["rope_theta"])}
    kind = rope["rope_type"]
    if kind == "default":
        return options
    given = {field: value for field, value in rope.items() if value is not None}
    trained = longest if kind == "dynamic" else given.get(_TRAINED, longest)  # as transformers reads them
    given = {"factor": longest / trained} | given | {_TRAINED: trained}
    fields = (*SCALINGS[kind].required, *SCALINGS[kind].defaults)
    scaling = {"rope_type": kind} | {field: given[field] for field in fields if field in given}
    return options | {"rope_scaling": scaling}


def _rope_fields(theirs: Any) -> Fields:
    rope = theirs.config.rope_parameters
    kind = rope["rope_type"]
    return _attention_fields(theirs) | {
        "rope_parameters.rope_type": (kind, kind if kind in ROPE_TYPES else " or ".join(ROPE_TYPES)),
        "rope_parameters.partial_rotary_factor": (rope.get("partial_rotary_factor") or 1.0, 1.0),
    }


_BLOCK = {
    "in_proj.weight": "in_proj.weight",
    "conv.weight": "conv1d.weight",
    "conv.bias": "conv1d.bias",
    "A_log": "A_log",
    "D": "D",
    "out_proj.weight": "out_proj.weight",
}
_SSM = _BLOCK | {name: name for name in ("x_proj.weight", "dt_proj.weight", "dt_proj.bias")}
_SSD = _BLOCK | {name: name for name in ("dt_bias", "norm.weight")}
_NORMED = ("dt_b_c_norm.0.weight", "dt_b_c_norm.1.weight", "dt_b_c_norm.2.weight")
_JAMBA_NORMS = ("dt_layernorm.weight", "b_layernorm.weight", "c_layernorm.weight")
_ATTENTION = {"qkv_proj.weight": "q_proj.weight k_proj.weight v_proj.weight", "out_proj.weight": "o_proj.weight"}

LAYERS = {
    "MambaMixer": Layer("selective_ssm", _SSM, _ssm_options, _mamba_fields),
    "FalconMambaMixer": Layer(
        "selective_ssm",
        _SSM | dict.fromkeys(_NORMED, ONES),
        lambda theirs: _ssm_options(theirs) | {"norm_eps": theirs.rms_eps},
        _mamba_fields,
    ),
    "Mamba2Mixer": Layer("ssd", _SSD, _ssd_options, _ssd_fields),
    "JambaMambaMixer": Layer(
        "selective_ssm",
        _SSM | dict(zip(_NORMED, _JAMBA_NORMS, strict=True)),
        lambda theirs: _ssm_options(theirs) | {"norm_eps": theirs.dt_layernorm.variance_epsilon},
        _jamba_fields,
    ),
    "JambaAttention": Layer("attention", _ATTENTION, _attention_options, _attention_fields),
    "LlamaAttention": Layer("attention", _ATTENTION, _rope_options, _rope_fields),
}

ROPE_TYPES = ("default", *SCALINGS)


def _options(theirs: Any) -> dict[str, Any]:
    """Return the mixer that a layer of theirs is: `{"name": ..., **options}`."""
    layer = LAYERS[type(theirs).__name__]
    _expect(theirs, layer.fields(theirs))
    return {"name": layer.mixer, **layer.options(theirs)}


def _part(layer: nn.Module, names: Sequence[str], kinds: Collection[str]) -> tuple[str, nn.Module]:
    """Name and module of that part of a layer which has one of the names."""
    found = [(name, part) for name, part in layer.named_children() if name in names]
    if len(found) != 1 or type(found[0][1]).__name__ not in kinds:
        there = ", ".join(f"{name}: {type(part).__name__}" for name, part in layer.named_children()) or "nothing"
        raise ValueError(f"{type(layer).__name__}: {' or '.join(names)} must be one of {', '.join(kinds)}; got {there}")
    return found[0]


def _mixer(theirs: Any, weights: _Weights) -> SequenceMixer:
    options, layer = _options(theirs), LAYERS[type(theirs).__name__]
    weights.read(layer.weights)
    d_model = weights.found["out_proj.weight"].shape[0]
    with torch.device("meta"):
        return create_mixer(options.pop("name"), d_model, **options)


# Models

_MAMBA = Family(
    embedding="backbone.embeddings",
    layers="backbone.layers",
    mixers=("mixer",),
    norms={"mixer_norm": "norm"},
    norm="backbone.norm_f",
)
_JAMBA = Family(
    embedding="model.embed_tokens",
    layers="model.layers",
    mixers=("mamba", "self_attn"),
    norms={"mixer_norm": "input_layernorm", "channel_norm": "pre_ff_layernorm"},
    norm="model.final_layernorm",
    channel="feed_forward",
)
MODELS = {
    "MambaForCausalLM": _MAMBA,
    "FalconMambaForCausalLM": _MAMBA,
    "Mamba2ForCausalLM": _MAMBA,
    "JambaForCausalLM": _JAMBA,
    "LlamaForCausalLM": _JAMBA._replace(
        mixers=("self_attn",),
        norms={"mixer_norm": "input_layernorm", "channel_norm": "post_attention_layernorm"},
        norm="model.norm",
        channel="mlp",
    ),
}

_SWIGLU = {"up_proj.weight": "gate_proj.weight up_proj.weight", "down_proj.weight": "down_proj.weight"}
_EXPERTS = {"router.weight": "router.weight", "up_proj": "experts.gate_up_proj", "down_proj": "experts.down_proj"}
CHANNELS = {"LlamaMLP": _SWIGLU, "JambaMLP": _SWIGLU, "JambaSparseMoeBlock": _EXPERTS}


def _model(theirs: Any, family: Family, weights: _Weights) -> Backbone:
    """Return the backbone on the meta device; tells `weights` what goes into it."""
    embedding, head = theirs.get_submodule(family.embedding), theirs.lm_head
    weights.read({"embedding.weight": f"{family.embedding}.weight", "norm.weight": f"{family.norm}.weight"})
    if head.weight is embedding.weight:
        weights.found["head.weight"] = weights.found["embedding.weight"]  # one parameter, here too
    else:
        weights.read({"head.weight": "lm_head.weight"})
    pattern, channels, eps = [], [], {family.norm: theirs.get_submodule(family.norm).variance_epsilon}
    for number, layer in enumerate(theirs.get_submodule(family.layers)):
        path, ours = f"{family.layers}.{number}", f"layers.layers.{number}"
        name, mixer = _part(layer, family.mixers, LAYERS)
        pattern.append(_options(mixer))
        weights.read(LAYERS[type(mixer).__name__].weights, f"{path}.{name}", f"{ours}.mixer")
        for norm, their_norm in family.norms.items():
            weights.read({"weight": "weight"}, f"{path}.{their_norm}", f"{ours}.{norm}")
            eps[f"{path}.{their_norm}"] = layer.get_submodule(their_norm).variance_epsilon
        if family.channel:
            _, channel = _part(layer, [family.channel], CHANNELS)
            weights.read(CHANNELS[type(channel).__name__], f"{path}.{family.channel}", f"{ours}.channel")
            channels.append(channel)
    _expect(theirs, {"num_hidden_layers": (len(pattern), len(pattern) or "1 or more")})
    _expect(theirs, {f"eps of {path}": (value, eps[family.norm]) for path, value in eps.items()})
    with torch.device("meta"):
        return Backbone(
            pattern[0] if all(entry == pattern[0] for entry in pattern) else {"name": "hybrid", "pattern": pattern},
            embedding.embedding_dim,
            len(pattern),
            vocab_size=embedding.num_embeddings,
            n_outputs=head.out_features,
            norm_eps=eps[family.norm],
            **_channel_options(theirs.config, channels),
        )


def _channel_options(config: Any, channels: Sequence[nn.Module]) -> dict[str, Any]:
    """Return the options of the channel mixers: read off the layers, which need not have an expert among them."""
    if not channels:
        return {"d_channel": 0}
    n_layers, period = len(channels), getattr(config, "expert_layer_period", 1)
    experts = [number for number, channel in enumerate(channels) if CHANNELS[type(channel).__name__] is _EXPERTS]
    first = experts[0] if experts else 0
    _expect(
        config,
        {
            "hidden_act": (config.hidden_act, "silu"),
            "mlp_bias": (getattr(config, "mlp_bias", False), False),
            "layers with experts": (experts, list(range(first, n_layers, period)) if experts else []),
        },
    )
    options = {"d_channel": config.intermediate_size}
    if experts:
        options |= {"n_experts": config.num_experts, "top_k": config.num_experts_per_tok}
        options |= {"expert_period": period, "expert_offset": first}
    return options


# The check

_ALLOWED = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""What `_miss` may be, by the dtype of our output. In float64 as well, transformers computes norms in float32."""

_SEQ_LEN = 32


def _verify(theirs: Any, ours: SequenceMixer | Backbone) -> None:
    """Raise ValueError unless each layer of ours gives what theirs gives, in one pass of theirs on random input.

    Layer by layer on their own inputs: over the whole depth roundings add up, in bfloat16 to all of the output.
    """
    stages = dict(_stages(theirs, ours))
    x, options = _random_input(theirs, ours)
    dtype = ours.get_parameter("embedding.weight" if isinstance(ours, Backbone) else "out_proj.weight").dtype
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), _recorded(theirs, stages) as outputs:
            theirs(x, **options)
            ours.eval()
            for path, stage in stages.items():
                y = stage(x)
                miss, allowed = _miss(y, outputs[path]), _ALLOWED[y.dtype]
                if not miss <= allowed:
                    raise ValueError(
                        f"{_join(type(theirs).__name__, path)} gives other outputs than the zoo's: off by {miss:.1e} "
                        f"of their size on random input, {allowed:.0e} is allowed in {y.dtype}; something there is not "
                        "as its configuration says (verify=False loads all the same)"
                    )
                x = outputs[path].to(dtype)  # theirs may keep the residual in float32
    except (RuntimeError, AttributeError, TypeError, LookupError) as error:
        dtypes = sorted({str(parameter.dtype) for parameter in theirs.parameters()})
        raise ValueError(
            f"{type(theirs).__name__}: cannot be run in {' and '.join(dtypes)} next to the zoo's: "
            f"{' '.join(str(error).split())}; {'cast it to one dtype, or ' * (len(dtypes) > 1)}give verify=False"
        ) from error


@contextmanager
def _recorded(theirs: Any, paths: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """Yield their outputs by path once they have run, in eval mode; everything is put back afterwards."""
    outputs: dict[str, Tensor] = {}

    def record(path: str) -> Callable[..., None]:
        def hook(_module: object, _inputs: object, output: Any) -> None:
            outputs[path] = output if isinstance(output, Tensor) else output[0]

        return hook

    training = {module: module.training for module in theirs.modules()}
    hooks = [theirs.get_submodule(path).register_forward_hook(record(path)) for path in paths]
    config: Any = getattr(theirs, "config", None)
    experts = getattr(config, "_experts_implementation", None)
    try:
        theirs.eval()
        if experts is not None:
            config._experts_implementation = "eager"  # the only one that takes float64
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
        for module, flag in training.items():
            module.training = flag
        if experts is not None:
            config._experts_implementation = experts


def _stages(theirs: Any, ours: SequenceMixer | Backbone) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Yield their modules in order, by path, and ours that ought to give the same."""
    if isinstance(ours, SequenceMixer):
        yield "", ours
        return
    family = MODELS[type(theirs).__name__]
    assert ours.norm is not None
    assert ours.head is not None
    yield family.embedding, ours.embed
    for number, block in enumerate(ours.layers.chain()):
        yield f"{family.layers}.{number}", block
    yield family.norm, ours.norm
    yield "lm_head", ours.head
    yield "", nn.Identity()  # what the model returns is what its head does


def _random_input(theirs: Any, ours: SequenceMixer | Backbone) -> tuple[Tensor, dict[str, Any]]:
    """Draw tokens for a model, vectors for a layer; and what else its call takes."""
    generator = torch.Generator().manual_seed(0)
    config = getattr(theirs, "config", None)
    longest = getattr(config, "max_position_embeddings", None) or _SEQ_LEN + 1
    seq_len = max(1, min(_SEQ_LEN, longest - 1))  # shorter than where their dynamic rope begins to keep a state
    if isinstance(ours, Backbone):
        assert ours.embedding is not None
        tokens = torch.randint(ours.embedding.num_embeddings, (2, seq_len), generator=generator)
        return tokens.to(ours.embedding.weight.device), {"use_cache": False}
    like = ours.get_parameter("out_proj.weight")
    x = torch.randn(2, seq_len, ours.d_model, generator=generator).to(like)
    if LAYERS[type(theirs).__name__].mixer != "attention":
        return x, {}
    options: dict[str, Any] = {"attention_mask": None}
    if theirs.config._attn_implementation in ("eager", "sdpa"):  # others are causal by themselves
        options["attention_mask"] = torch.full((seq_len, seq_len), torch.finfo(x.dtype).min).triu(1).to(x)[None, None]
    rotary = getattr(sys.modules[type(theirs).__module__], "LlamaRotaryEmbedding", None)
    if rotary is not None:  # it belongs to the model, not to the layer
        positions = torch.arange(seq_len, device=x.device)[None]
        options["position_embeddings"] = rotary(theirs.config).to(x.device)(x, positions)
    return x, options


def _miss(ours: Tensor, theirs: Tensor) -> float:
    """Return the root mean square of the difference over that of theirs; NaN where either has one."""
    wide = widest(theirs.device)
    difference, size = (t.square().mean().sqrt().item() for t in (ours.to(wide) - theirs.to(wide), theirs.to(wide)))
    return difference / size if size else float(difference > 0)
