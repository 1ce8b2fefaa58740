"""The explorer: one page on which a person holds a head, a sentence or an order in their hands."""
