"""One family of models a file: where its weights are, how it is fed, where hooks go."""
