"""What a foreign file is, told by its content and not by its name, and what it holds."""

from __future__ import annotations

from shardstore.importing import pt_file, safetensors_file
from shardstore.importing.contents import Contents
from shardstore.importing.files import ForeignFile, check_data, unknown

_WANTED = "a safetensors file or one of torch.save"


def read_contents(path: str, *, within: str | None = None) -> Contents:
    """A .pt or .safetensors file; closed until its tensors are read."""
    file = ForeignFile(path, within=within)
    try:
        head = file.head()
        check_data(file, head)
        if pt_file.is_pt(head):
            return pt_file.read(file)
        if safetensors_file.is_safetensors(head):
            return safetensors_file.read(file)
        raise unknown(file, head, _WANTED)
    finally:
        file.close()
