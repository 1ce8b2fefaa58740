"""Order symmetry: what a model makes of its tokens' order, and by which mechanism."""
