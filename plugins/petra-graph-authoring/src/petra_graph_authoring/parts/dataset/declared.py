from petra_graph.plugins import AtLeast, DataFacts, DataSetDeclaration, declares, option


@declares(DataSetDeclaration, "petra_graph_examples.data:NoisyStripes")
class NoisyStripes:
    """Horizontal or vertical stripes with noise."""

    samples: int = option("training samples; a quarter as many are for the test", default=512, validator=AtLeast(4))

    def facts(self):
        """Return the facts of grey images in two classes."""
        return DataFacts(shape=(1, 8, 8), dtype="uint8", classes=2, mean=(0.5,), std=(0.5,))

    def training_samples(self):
        """Return the number of training samples, so that a plan says how long an epoch takes."""
        return self.samples
