class TextLines:
    """Lines of text, for people, in `metrics.txt`; a resumed run says where it continues."""

    def __init__(self, options, run):
        self.file = (run.directory / "metrics.txt").open("a")
        if run.resumed_at is not None:
            print(f"again from step {run.resumed_at}", file=self.file)

    def record(self, *, epoch, step, values):
        for name, value in values.items():
            print(f"epoch {epoch}, step {step}: {name} is {value:.4g}", file=self.file)

    def close(self):
        self.file.close()
