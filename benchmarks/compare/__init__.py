"""The peers, each with its best settings, and the store's own side of the same comparison.

A peer saves the whole state durably (files and directories synced) from tensors that stand alone,
and loads it into resident tensors that one may write to afterwards: what a training run needs.
"""
