"""Where kernels run, and how tensors get there and back.

`InPlace`: on the CPU the loaded buffer is the parameter; nothing is copied. `Copied`: on
another device a shard is copied into one flat buffer there, computed and updated there, and
copied back into the checked-out host buffer. Copies from pinned memory are asynchronous;
`settle` waits until the host buffers of earlier copies may be reused. Between the passes
activations rest on the host. `Copied` also runs on the CPU, where it must give the same bits.
"""

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from trainer.errors import ConfigError

_ALIGNMENT = 256


class Placement(Protocol):
    """One device's way of holding a shard."""

    @property
    def device(self) -> torch.device: ...

    def bring(self, host: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors that kernels may use, with the values of `host`."""
        ...

    def take_back(self, device: Mapping[str, Tensor], host: Mapping[str, Tensor]) -> None:
        """Write changed tensors into the host tensors of the same names; done when it returns."""
        ...

    def settle(self) -> None:
        """Wait until no copy reads a host buffer any more."""
        ...

    def to_host(self, tensor: Tensor) -> Tensor:
        """Put an activation or its gradient aside."""
        ...

    def to_device(self, tensor: Tensor) -> Tensor:
        """Fetch token ids, an activation or its gradient."""
        ...


class InPlace:
    """The CPU: every move is the identity."""

    device = torch.device("cpu")

    def bring(self, host: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(host)

    def take_back(self, device: Mapping[str, Tensor], host: Mapping[str, Tensor]) -> None:
        for name, tensor in device.items():
            assert tensor.data_ptr() == host[name].data_ptr(), f"{name} is not the host's tensor"

    def settle(self) -> None:
        return

    def to_host(self, tensor: Tensor) -> Tensor:
        return tensor

    def to_device(self, tensor: Tensor) -> Tensor:
        return tensor


class Copied:
    """A device with memory of its own; all work runs on its current stream, in order."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._brought = torch.Event(device) if device.type == "cuda" else None

    def bring(self, host: Mapping[str, Tensor]) -> dict[str, Tensor]:
        sizes = {name: _aligned(tensor.nbytes) for name, tensor in host.items()}
        flat = torch.empty(sum(sizes.values()), dtype=torch.uint8, device=self.device)
        placed: dict[str, Tensor] = {}
        offset = 0
        for name, tensor in host.items():
            view = flat[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            placed[name] = view.copy_(tensor, non_blocking=True)
            offset += sizes[name]
        if self._brought is not None:
            self._brought.record(torch.cuda.current_stream(self.device))
        return placed

    def take_back(self, device: Mapping[str, Tensor], host: Mapping[str, Tensor]) -> None:
        for name, tensor in device.items():
            host[name].copy_(tensor, non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def settle(self) -> None:
        # Only the copies are waited for: kernels go on while the host buffer is used again.
        if self._brought is not None:
            self._brought.synchronize()

    def to_host(self, tensor: Tensor) -> Tensor:
        return tensor.to("cpu")

    def to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)


def placement_for(device: str) -> Placement:
    """The placement of `--device`; a device this machine does not have is refused by name."""
    wanted = torch.device(device)
    if wanted.type == "cpu":
        return InPlace()
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (wanted.index or 0) >= count:
        raise ConfigError(
            f"--device {device}: this machine has {count} CUDA devices, use --device cpu"
        )
    return Copied(torch.device("cuda", wanted.index or 0))


def _aligned(size: int) -> int:
    return math.ceil(size / _ALIGNMENT) * _ALIGNMENT
