"""The model side: loading, attention over KV slots, packing and running one forward pass."""
