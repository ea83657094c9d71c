"""Shard-native training of language models on top of a `shardstore` store.

The model is a list of shards; one step loads them one after the other, so that neither the
model nor its optimizer state is ever resident as a whole. Layers, from the bottom:

- `architecture`, `presets`, `config`, `schedule`: plain values, no torch.
- `model`, `optim`, `init`: pure functions over one shard's tensors.
- `stream`: the order of a step (`plan`), who is resident (`residency`), and the executor that
  runs it over any `ShardSource`.
- `state`, `data`, `loop`, `cli`: the store behind the source, the text in front, and the
  command line.
"""
