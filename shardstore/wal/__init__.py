"""The write-ahead log: `state` folds records, `reader` reads segments, `writer` makes them."""
