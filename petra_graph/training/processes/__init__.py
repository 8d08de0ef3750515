"""The processes of a run: one that hosts all stages, or one of several, which agree and fail together."""
