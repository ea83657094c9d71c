"""Who is in memory: counts active shards by part, and refuses more than the budget.

A shard is active from the moment its tensors can be touched by a kernel until they are staged
or let go. The budget is a contract of the executor, so breaking it is an error of the program
and not of its user.
"""

import dataclasses

from trainer.architecture import OPTIM, PARAMS
from trainer.errors import ResidencyError


@dataclasses.dataclass(slots=True)
class _Part:
    budget: int
    active: dict[str, int] = dataclasses.field(default_factory=dict)
    most: int = 0
    loads: int = 0
    staged: int = 0


class ResidencyCounters:
    """Counts of one step or one validation."""

    def __init__(
        self, *, max_active_param_shards: int = 1, max_active_optimizer_shards: int = 1
    ) -> None:
        self._parts = {
            PARAMS: _Part(max_active_param_shards),
            OPTIM: _Part(max_active_optimizer_shards),
        }

    def enter(self, shard: str, part: str, numel: int) -> None:
        """A part was loaded; `numel` is the number of its elements."""
        count = self._parts[part]
        if shard in count.active:
            raise ResidencyError(f"shard {shard}, part {part}: loaded while it is active")
        if len(count.active) >= count.budget:
            raise ResidencyError(
                f"shard {shard}, part {part}: {', '.join(count.active)} active, "
                f"the budget is {count.budget}"
            )
        count.active[shard] = numel
        count.loads += 1
        count.most = max(count.most, len(count.active))

    def leave(self, shard: str, part: str, *, staged: bool) -> None:
        count = self._parts[part]
        if count.active.pop(shard, None) is None:
            raise ResidencyError(f"shard {shard}, part {part}: released but not active")
        count.staged += staged

    def loads(self, part: str) -> int:
        return self._parts[part].loads

    def as_log(self) -> dict[str, int | list[str]]:
        """The fields of the step log."""
        params, optim = self._parts[PARAMS], self._parts[OPTIM]
        return {
            "updated_shards": params.staged,
            "optimizer_shards_touched": optim.staged,
            "max_active_param_shards_observed": params.most,
            "max_active_optimizer_shards_observed": optim.most,
            "active_param_shards": list(params.active),
            "active_optimizer_shards": list(optim.active),
            "resident_parameter_count": sum(params.active.values()),
            "resident_optimizer_state_count": sum(optim.active.values()),
            "param_loads": params.loads,
            "optimizer_loads": optim.loads,
        }
