"""Pure bytes: layout of objects, frames of the log, records, names, digests. No I/O, no torch.

`shardstore/FORMAT.md` is the prose; the modules here hold its constants and check them.
"""
