"""AdamW over one shard's tensors: the arithmetic of `torch.optim.AdamW`, without an optimizer
object.

State of a shard, its part `optim`: for each parameter `m.<name>` and `v.<name>` in fp32, and
`step`, the number of updates applied to this shard (int64, no dimensions). `step` is read and
counted on the host by the caller; only the moments go to the device. Weight decay leaves out
norms, that is every parameter of one dimension.
"""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from trainer.architecture import ModelConfig

STEP = "step"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """The numbers of one update; `lr` is this step's, after the schedule."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.05

    def update(
        self,
        params: Mapping[str, Tensor],
        grads: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        step: int,
    ) -> None:
        """Change parameters and moments in place; `step` counts this update, the first is 1."""
        with torch.no_grad():
            for decay in (True, False):
                names = [name for name in params if decays(params[name]) is decay]
                if names:
                    self._update_group(names, params, grads, state, step, decay)

    def _update_group(
        self,
        names: list[str],
        params: Mapping[str, Tensor],
        grads: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        step: int,
        decay: bool,
    ) -> None:
        device = params[names[0]].device
        # torch counts the step itself, in fp32 tensors beside the parameters.
        counts = [
            torch.full((), float(step - 1), dtype=torch.float32, device=device) for _ in names
        ]
        adamw(
            [params[name] for name in names],
            [grads[name] for name in names],
            [state[first_moment(name)] for name in names],
            [state[second_moment(name)] for name in names],
            [],
            counts,
            fused=True,
            amsgrad=False,
            beta1=self.beta1,
            beta2=self.beta2,
            lr=self.lr,
            weight_decay=self.weight_decay if decay else 0.0,
            eps=self.eps,
            maximize=False,
        )


def decays(parameter: Tensor) -> bool:
    return parameter.dim() > 1


def first_moment(name: str) -> str:
    return f"m.{name}"


def second_moment(name: str) -> str:
    return f"v.{name}"


def initial_state(config: ModelConfig, shard: str) -> dict[str, Tensor]:
    """The optimizer state before the first update.

    The moments are one zero seen through the full shape: nothing is allocated, so copy them before
    writing.
    """
    zero = torch.zeros((), dtype=torch.float32)
    state: dict[str, Tensor] = {}
    for name, shape in config.shapes(shard).items():
        state[first_moment(name)] = zero.expand(shape)
        state[second_moment(name)] = zero.expand(shape)
    state[STEP] = torch.zeros((), dtype=torch.int64)
    return state
