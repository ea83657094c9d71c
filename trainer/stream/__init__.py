"""The streamed step: `plan` says in which order, `residency` counts, `placement` moves, `compute`
does the arithmetic, `executor` runs it over a `source`.
"""
