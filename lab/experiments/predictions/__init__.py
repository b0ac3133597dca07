"""What each experiment of configs/experiment/ predicts, in numbers: one module per experiment, named as its file.

A file says in words what is expected and which runs decide; its module says the same as checks, committed before the
runs are made.
"""

from zoo.lookup import Registry

_HERE = "lab.experiments.predictions"

PREDICTIONS = Registry(
    "experiment",
    {
        "head_count": (f"{_HERE}.head_count:PREDICTION", "heads trained on an SSM of rank k end at the exact bound"),
        "rank_gap": (f"{_HERE}.rank_gap:PREDICTION", "one head against an SSM of rank k"),
        "gradient_highway": (
            f"{_HERE}.gradient_highway:PREDICTION",
            "the gradient before training says what is learned",
        ),
        "gradient_threshold": (
            f"{_HERE}.gradient_threshold:PREDICTION",
            "a limit on the gradient before training, fitted on some mixers, told of others",
        ),
        "trainability": (
            f"{_HERE}.trainability:PREDICTION",
            "which starts of Mamba learn recall, told before training",
        ),
        "starts_of_mamba": (
            f"{_HERE}.starts_of_mamba:PREDICTION",
            "what strong writes and two norms each do for recall by Mamba-1",
        ),
        "recall": (f"{_HERE}.recall:PREDICTION", "recall grows with the state"),
        "recall_capacity": (
            f"{_HERE}.recall_capacity:PREDICTION",
            "recall of more pairs by every mixer that carries a state",
        ),
        "copying": (f"{_HERE}.copying:PREDICTION", "a fixed state copies what it holds, attention any length"),
        "state_tracking": (
            f"{_HERE}.state_tracking:PREDICTION",
            "who keeps a group's element beyond the trained length",
        ),
        "reflections": (f"{_HERE}.reflections:PREDICTION", "what a second reflection per token gains on S3"),
        "rotations": (f"{_HERE}.rotations:PREDICTION", "rotations of Z3 take two reflections per token"),
        "generators": (
            f"{_HERE}.generators:PREDICTION",
            "words of two turns of A5 take two reflections per token, words of swaps one",
        ),
        "horizon": (f"{_HERE}.horizon:PREDICTION", "how long a state is kept, told by the states of training"),
        "functional_heads": (
            f"{_HERE}.functional_heads:PREDICTION",
            "a trained layer needs few of the operators that it spans",
        ),
        "functional_heads_trained": (
            f"{_HERE}.functional_heads_trained:PREDICTION",
            "the layer that does the work needs few operators",
        ),
        "functional_heads_one_layer": (
            f"{_HERE}.functional_heads_one_layer:PREDICTION",
            "a layer alone needs few operators, in every mixer with a state",
        ),
        "hybrid_ratio": (f"{_HERE}.hybrid_ratio:PREDICTION", "one attention layer in four is enough"),
        "gates": (f"{_HERE}.gates:PREDICTION", "gates per channel serve where the target spans more than the heads"),
        "gates_on_tasks": (
            f"{_HERE}.gates_on_tasks:PREDICTION",
            "gates per channel on recall, which takes one operator, and on text",
        ),
        "placement": (
            f"{_HERE}.placement:PREDICTION",
            "where the only attention layer stands matters more than the seed",
        ),
        "placement_of_two": (
            f"{_HERE}.placement_of_two:PREDICTION",
            "where two attention layers stand, and what tells it beforehand",
        ),
        "placement_on_needle": (
            f"{_HERE}.placement_on_needle:PREDICTION",
            "where two attention layers stand for a needle, against the seed",
        ),
        "placement_probes": (
            f"{_HERE}.placement_probes:PREDICTION",
            "which probe picks the place of the only attention layer",
        ),
        "real_text": (f"{_HERE}.real_text:PREDICTION", "near symbols carry most of text, recall the rest"),
        "skill_to_loss": (f"{_HERE}.skill_to_loss:PREDICTION", "skill on synthetic tasks ranks mixers as text does"),
    },
)
