from attrs import frozen
from petra_graph.plugins import AtLeast, DataFacts, DataSetDeclaration, option


@frozen(kw_only=True)
class NoisyStripesOptions:
    """The number of samples."""

    samples: int = option("training samples; a quarter as many are for the test", default=512, validator=AtLeast(4))


def noisy_stripes_facts(options: NoisyStripesOptions) -> DataFacts:
    """Return the facts of grey images in two classes."""
    return DataFacts(shape=(1, 8, 8), dtype="uint8", classes=2, mean=(0.5,), std=(0.5,))


def noisy_stripes_samples(options: NoisyStripesOptions) -> int:
    """Return the number of training samples, so that a plan says how long an epoch takes."""
    return options.samples


NOISY_STRIPES = DataSetDeclaration(
    summary="Horizontal or vertical stripes with noise.",
    options=NoisyStripesOptions,
    build="petra_graph_examples.data:NoisyStripes",
    facts=noisy_stripes_facts,
    training_samples=noisy_stripes_samples,
    api=1,
)
