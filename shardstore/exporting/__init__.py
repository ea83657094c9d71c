"""Export: a commit's parts as files that other tools read.

`new_files` writes, `plain` makes .safetensors and .pt files, `flat` makes flat checkpoints with
their sidecars. What is exported is verified as every load is; nothing that exists is overwritten.
"""
