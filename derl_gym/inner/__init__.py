"""One inner run: settings and result (light); training, generation and evaluation (heavy, in their own process)."""
