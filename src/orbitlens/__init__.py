"""orbitlens: where tokens go in a Transformer, and which reorderings it cannot tell apart."""
