"""What the store costs, measured beside the physical limits of the machine and beside its peers.

    python -m benchmarks list                       the questions
    python -m benchmarks commit load --model v2.9   answer some of them
    python -m benchmarks report                     one page of tables and pictures of the answers

A module directly in this package that has a `QUESTION` is a question, under the module's name;
there is nothing else to register. `frame/` holds what they share, `compare/` the peers and the
store's own side, `results/` what the runs left: JSON, pictures, and the page that README and docs
quote.
"""
