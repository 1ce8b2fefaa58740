"""The lab: small transformers trained side by side, each mechanism a switch."""
