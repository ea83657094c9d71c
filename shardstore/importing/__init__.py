"""Import: files of other systems become commits; nothing in them is executed or believed.

`files` opens, `readers` tells what a file is by its content; `safetensors_file`, `pt_file` (with
`zip_entries` and `pickles`), `flat_file` and `run_directory` (with `run_files`, `run_state` and
`moments`) know one kind each and make a `plan`, which has looked at every header before a store is
opened; `carrying` turns it into commits, one transaction a step.
"""
