"""The theory made measurable: operators, lag operators, head counts. Names are imported when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.theory.claims import list_claims, run_claims
    from zoo.theory.convert import to_heads
    from zoo.theory.costs import Complexity, complexity, input_dependence
    from zoo.theory.gradients import (
        DecayRate,
        GradientProfile,
        OffersHighway,
        decay_rate,
        gradient_profile,
        highway_profile,
    )
    from zoo.theory.lags import head_count, head_count_bound, lag_operators
    from zoo.theory.operator import (
        Interaction,
        NotAffineError,
        OperatorError,
        check_offset,
        interaction,
        offset_share,
    )
    from zoo.theory.rank import (
        effective_rank,
        heads_needed,
        interaction_rank,
        operator_spectrum,
        span_spectrum,
        spectrum_rank,
        stable_rank,
    )
    from zoo.theory.softmax import ema_as_alibi, softmax_floor, to_softmax_heads
    from zoo.theory.state_size import StateSize, effective_state_size
    from zoo.theory.teacher import balanced_teacher
    from zoo.theory.truncation import Basis, span_basis, truncate
    from zoo.theory.weights import head_weights

__all__ = [
    "Basis",
    "Complexity",
    "DecayRate",
    "GradientProfile",
    "Interaction",
    "NotAffineError",
    "OffersHighway",
    "OperatorError",
    "StateSize",
    "balanced_teacher",
    "check_offset",
    "complexity",
    "decay_rate",
    "effective_rank",
    "effective_state_size",
    "ema_as_alibi",
    "gradient_profile",
    "head_count",
    "head_count_bound",
    "head_weights",
    "heads_needed",
    "highway_profile",
    "input_dependence",
    "interaction",
    "interaction_rank",
    "lag_operators",
    "list_claims",
    "offset_share",
    "operator_spectrum",
    "run_claims",
    "softmax_floor",
    "span_basis",
    "span_spectrum",
    "spectrum_rank",
    "stable_rank",
    "to_heads",
    "to_softmax_heads",
    "truncate",
]

_HOMES = {
    "zoo.theory.claims": "list_claims run_claims",
    "zoo.theory.convert": "to_heads",
    "zoo.theory.costs": "Complexity complexity input_dependence",
    "zoo.theory.gradients": "DecayRate GradientProfile OffersHighway decay_rate gradient_profile highway_profile",
    "zoo.theory.lags": "head_count head_count_bound lag_operators",
    "zoo.theory.operator": "Interaction NotAffineError OperatorError check_offset interaction offset_share",
    "zoo.theory.rank": "effective_rank heads_needed interaction_rank operator_spectrum span_spectrum spectrum_rank "
    "stable_rank",
    "zoo.theory.softmax": "ema_as_alibi softmax_floor to_softmax_heads",
    "zoo.theory.state_size": "StateSize effective_state_size",
    "zoo.theory.teacher": "balanced_teacher",
    "zoo.theory.truncation": "Basis span_basis truncate",
    "zoo.theory.weights": "head_weights",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
