"""A package of plugins that are wrong, each in one way that an author would not see: what trained silently, or blamed another party."""

from __future__ import annotations

import copy
import itertools
import random
import sys
from types import SimpleNamespace

import numpy as np
import torch
from attrs import frozen
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrizations import spectral_norm

from petra_graph.blocks import AdditiveCoupling, Buffered, Head, Reversed, Reversible
from petra_graph.plugins import (
    ArchitectureDeclaration,
    BlockDeclaration,
    Callback,
    CallbackDeclaration,
    DataFacts,
    DataSetDeclaration,
    LoggerDeclaration,
    LossDeclaration,
    LrScheduleDeclaration,
    MetricDeclaration,
    NodeSpec,
    OptimizerDeclaration,
    option,
)

# --- blocks -----------------------------------------------------------------------------------------------------------


class Right(AdditiveCoupling):
    """A block without a mistake: each of those below adds one."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        (width,) = inputs[0]
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)

    def residual(self, x):
        return self.norm(self.linear(x)).tanh()


class InverseOff(Right):
    def inverse(self, *outputs):
        return tuple(stream + 5 for stream in super().inverse(*outputs))

    reverse_steps = Reversible.reverse_steps


class InverseSwapped(Right):
    def inverse(self, *outputs):
        return super().inverse(*outputs)[::-1]

    reverse_steps = Reversible.reverse_steps


class PythonsRandom(Right):
    def residual(self, x):
        return super().residual(x) * random.random()


class NumpysRandom(Right):
    def residual(self, x):
        return super().residual(x) * float(np.random.rand())  # noqa: NPY002  the mistake


class Counts(Right):
    calls = 0

    def residual(self, x):
        self.calls += 1
        return super().residual(x) / self.calls


class Spectral(Right):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = spectral_norm(self.linear)


class Renormalises(Right):
    """As `nn.Embedding(max_norm=1.0)` does."""

    def residual(self, x):
        with torch.no_grad():
            self.linear.weight.renorm_(2, 0, 1.0)
        return super().residual(x)


class Averages(Right):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.register_buffer("mean", torch.zeros(inputs[0]))

    def residual(self, x):
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return super().residual(x - self.mean)


class WritesToItsInput(Right):
    def residual(self, x):
        return super().residual(x.mul_(0.5))


class Lazy(Right):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.LazyLinear(inputs[0][0])


class PlainList(Right):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.layers = [nn.Linear(6, 6)]

    def residual(self, x):
        return super().residual(self.layers[0](x))


class Complex(Right):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.turn = nn.Parameter(torch.ones(6, dtype=torch.complex64))

    def residual(self, x):
        return super().residual((x * self.turn).real)


class MakesParametersLater(Right):
    def residual(self, x):
        if not hasattr(self, "scale"):
            self.scale = nn.Parameter(torch.ones(x.shape[1], device=x.device, dtype=x.dtype))
        return super().residual(x) * self.scale


class SeedsItself(Right):
    def __init__(self, inputs, options):
        torch.manual_seed(0)
        super().__init__(inputs, options)


class SeedsNumpy(Right):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        np.random.seed(0)  # noqa: NPY002  the mistake
        with torch.no_grad():
            self.linear.weight.copy_(torch.from_numpy(np.random.rand(6, 6)))  # noqa: NPY002


class DrawsItsScale(Right):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.scale = random.random()

    def residual(self, x):
        return super().residual(x) * self.scale


class DrawsItsDepth(Right):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(random.randrange(1, 9)))


class GradientOff(Right):
    def reverse_vjp(self, outputs, gradients):
        reverse = super().reverse_vjp(outputs, gradients)
        return Reversed(reverse.inputs, (reverse.gradients[0], 0.5 * reverse.gradients[1]))


class NoOptionsTaken(Right):
    def __init__(self, inputs):
        super().__init__(inputs, None)


class Spare(Right):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.spare = nn.Linear(2, 2)


class Misspelt(Right):
    def residual(self, x):
        return self.liner(x)


class Quits(Right):
    def residual(self, x):
        sys.exit("not for me")


class QuitsForGradients(Right):
    """In the measurement of costs."""

    def residual(self, x):
        if torch.is_grad_enabled():
            sys.exit("not for me")
        return super().residual(x)


class QuitsInTraining(Right):
    def residual(self, x):
        if x.device.type == "cpu" and len(x) == 8 and torch.is_grad_enabled():
            sys.exit("not for me")
        return super().residual(x)


class OnlyForValues(Right):
    def residual(self, x):
        if x.device.type != "meta" and float(x.detach().abs().max()) > 0:
            raise ValueError("values are not what I thought")
        return super().residual(x)


_SHARED = nn.Linear(6, 6)


class Tied(Right):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = _SHARED


class NoInverse(Reversible):
    def forward(self, *streams):
        return streams


class Bare(Buffered):
    def forward(self, *streams):
        return list(streams)


class Half(Buffered):
    def forward(self, *streams):
        return tuple(stream.half() for stream in streams)


class Truths(Buffered):
    def forward(self, *streams):
        return tuple(stream > 0 for stream in streams)


class Whole(Buffered):
    def forward(self, *streams):
        return tuple(stream.long() for stream in streams)


class OneForAll(Buffered):
    def forward(self, *streams):
        return tuple(stream.mean(0) for stream in streams)


class NoFeatures(Buffered):
    def forward(self, *streams):
        return tuple(stream.mean(1) for stream in streams)


class Softmax(Head):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(6, 3)

    def forward(self, *streams):
        return (self.linear(streams[0]).softmax(1),)


class NoBlock(nn.Module):
    kind = "buffered"


# --- optimizers -------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Rate:
    lr: float = option("the rate", default=0.1)


@frozen(kw_only=True)
class WholeRate:
    lr: int = option("the rate", default=1)


@frozen(kw_only=True)
class WrongDefault:
    lr: float = option("the rate", default="fast")


def every(groups):
    return [*groups.decayed, *groups.undecayed]


class OnlyMatrices(torch.optim.SGD):
    """Passes the kit's first steps, and leaves biases still."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and (parameter.dim() > 1 or len(parameter) < 6):
                    parameter.add_(parameter.grad, alpha=-group["lr"])


class StepsCopies(torch.optim.SGD):
    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr)
        self.copies = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def step(self):
        for each in self.copies:
            each.mul_(0.9)


class OwnRate(torch.optim.SGD):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-0.1)


class Raises(torch.optim.SGD):
    def step(self):
        if len(self.param_groups[0]["params"]) < 3:
            raise ValueError("a step too far")
        super().step()


class SwapsWeights(torch.optim.SGD):
    @torch.no_grad()
    def evaluated_weights(self, parameter):
        return parameter.mul_(0.9)


class Optimizers:
    """What `build` names."""

    def forgets(groups, options):
        return torch.optim.SGD(groups.decayed, lr=options.lr)

    def has_copies(groups, options):
        return torch.optim.SGD([p.detach().clone().requires_grad_() for p in every(groups)], lr=options.lr)

    def steps_copies(groups, options):
        return StepsCopies(every(groups), lr=options.lr)

    def only_matrices(groups, options):
        return OnlyMatrices(every(groups), lr=options.lr)

    def ascends(groups, options):
        return torch.optim.SGD(every(groups), lr=options.lr, maximize=True)

    def own_rate(groups, options):
        return OwnRate(every(groups), lr=options.lr)

    def no_option(groups, options):
        return torch.optim.SGD(every(groups), lr=1.0)

    def raises(groups, options):
        return Raises(every(groups), lr=options.lr)

    def swaps_weights(groups, options):
        return SwapsWeights(every(groups), lr=options.lr)

    def lbfgs(groups, options):
        return torch.optim.LBFGS(every(groups))

    def returns_nothing(groups, options):
        return None


# --- metrics ----------------------------------------------------------------------------------------------------------


class Metric:
    def __init__(self, options):
        self.right = self.seen = 0

    def update(self, output, target):
        self.right = self.right + (output.argmax(1) == target).sum()
        self.seen += len(target)

    def compute(self):
        return self.right / self.seen


class Says(Metric):
    def compute(self):
        return f"{super().compute():.2f}"


class NotANumber(Metric):
    def compute(self):
        return super().compute() / 0 * 0


class ForEachClass(Metric):
    def compute(self):
        return torch.stack([super().compute()] * 2)


class WithGraph(Metric):
    def compute(self):
        with torch.enable_grad():
            return super().compute() * nn.Parameter(torch.ones(()))


class PerCent(Metric):
    def compute(self):
        return super().compute() * 100


class NoSuchColumn(Metric):
    def update(self, output, target):
        self.right = self.right + output[:, 3].sum()


class RaisesAtTheEnd(Metric):
    def compute(self):
        raise ZeroDivisionError("no such class")


class MeanOfBatches(Metric):
    def update(self, output, target):
        self.right = self.right + (output.argmax(1) == target).double().mean()
        self.seen += 1


class SharesItsState(Metric):
    counts = [0, 0]  # noqa: RUF012  the mistake

    def update(self, output, target):
        self.counts[0] += int((output.argmax(1) == target).sum())
        self.counts[1] += len(target)

    def compute(self):
        return self.counts[0] / self.counts[1]


class WritesToOutputs(Metric):
    def update(self, output, target):
        super().update(output.softmax(1).exp_(), target)
        output.sub_(1)


class DrawsNumbers(Metric):
    def update(self, output, target):
        kept = np.random.permutation(len(target))  # noqa: NPY002  the mistake
        super().update(output[kept], target[kept])


class UpdatesAPair(Metric):
    def update(self, pair):
        super().update(*pair)


ONLY_ONE = Metric(None)


def singleton(options):
    return ONLY_ONE


# --- losses -----------------------------------------------------------------------------------------------------------


class Loss:
    def __init__(self, options):
        pass

    def __call__(self, output, target):
        return cross_entropy(output, target)

    def metrics(self, output, target):
        return {}


class Detached(Loss):
    def __call__(self, output, target):
        return super().__call__(output, target).detach()


class Vector(Loss):
    def __call__(self, output, target):
        return cross_entropy(output, target, reduction="none")


class Number(Loss):
    def __call__(self, output, target):
        return super().__call__(output, target).item()


class NoMetrics(Loss):
    def metrics(self, output, target):
        return None


class Share(Loss):
    def metrics(self, output, target):
        return {"top1": torch.tensor(61 * len(target))}


class RaisesInTraining(Loss):
    def __call__(self, output, target):
        if target.max() > 0 and output.abs().max() > 0:
            raise RuntimeError("no such class")
        return super().__call__(output, target)


class NotFinite(Loss):
    def __call__(self, output, target):
        return super().__call__(output, target) / 0


class SumsSamples(Loss):
    def __call__(self, output, target):
        return cross_entropy(output, target, reduction="sum")


class Draws(Loss):
    def __call__(self, output, target):
        return super().__call__(output * random.random(), target)


class MeanMetric(Loss):
    def metrics(self, output, target):
        return {"top1": (output.argmax(1) == target).float().mean()}


class NoTargets(Loss):
    def metrics(self, output):
        return {}


class CountsSoFar(Loss):
    seen = 0

    def metrics(self, output, target):
        self.seen += len(target)
        return {"seen": torch.tensor(float(self.seen))}


class Ascends(Loss):
    def __call__(self, output, target):
        return -super().__call__(output, target)


class Learns(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output, target):
        return cross_entropy(output * self.scale, target)

    def metrics(self, output, target):
        return {}


# --- learning-rate schedules ------------------------------------------------------------------------------------------


class LrSchedules:
    """What `build` names."""

    def returns_nothing(options, horizon):
        return None

    def negative(options, horizon):
        return lambda u: 1.0 - u

    def fails_later(options, horizon):
        return lambda u: {0: 1.0, 1: 0.5, 2: 0.5}[u]

    def counts(options, horizon):
        asked = itertools.count(1)
        return lambda u: 1 / next(asked)

    def no_update(options, horizon):
        return lambda: 1.0

    def draws(options, horizon):
        return lambda u: random.random()

    def percents(options, horizon):
        return lambda u: 0.01 * (1 - u / horizon.updates)


# --- data sets --------------------------------------------------------------------------------------------------------


class Data:
    """40 samples of four numbers, in three classes."""

    facts = DataFacts(shape=(4,), dtype="float32", classes=3)
    declared = facts

    first = 0

    def __init__(self, options):
        self.train, self.test = self, copy.copy(self)
        self.test.first = 40

    def __len__(self):
        return 40

    def sample(self, index):
        return torch.full((4,), float(self.first + index)) / 40

    def target(self, index):
        return torch.tensor(index % 3)

    def fetch(self, indices, *, seed, epoch):
        return torch.stack([self.sample(int(i)) for i in indices]), torch.stack([self.target(int(i)) for i in indices])


class RowShort(Data):
    def fetch(self, indices, *, seed, epoch):
        samples, targets = super().fetch(indices, seed=seed, epoch=epoch)
        return samples[1:], targets[1:]


class OtherDtype(Data):
    def sample(self, index):
        return super().sample(index).double()


class OtherShape(Data):
    def sample(self, index):
        return super().sample(index)[:3]


class OtherFacts(Data):
    facts = DataFacts(shape=(4,), dtype="float32", classes=5)


class ClassesFromOne(Data):
    def target(self, index):
        return torch.tensor(1 + index % 3)


class Arrays(Data):
    def fetch(self, indices, *, seed, epoch):
        return tuple(one.numpy() for one in super().fetch(indices, seed=seed, epoch=epoch))


class NaN(Data):
    def sample(self, index):
        return super().sample(index) / (0 if index == 21 else 1) * 0


class LosesSamples(Data):
    def sample(self, index):
        if index == 21:
            raise FileNotFoundError("21.png")
        return super().sample(index)


class Exits(Data):
    def sample(self, index):
        raise SystemExit(3)


class Stream(Data):
    """Gives the next samples, whatever the indices."""

    given = 0

    def sample(self, index):
        self.given += 1
        return super().sample(self.given % 40)


class GlobalNoise(Data):
    def sample(self, index):
        return super().sample(index) + float(np.random.rand())  # noqa: NPY002  the mistake


class OtherTests(Data):
    def fetch(self, indices, *, seed, epoch):
        samples, targets = super().fetch(indices, seed=seed, epoch=epoch)
        return samples + epoch, targets


class OtherTargets(Data):
    def fetch_targets(self, indices):
        return torch.as_tensor(indices) % 2


class TwoNumbers(Data):
    """A regression of two numbers, which a head of three outputs cannot learn."""

    facts = declared = DataFacts(shape=(4,), dtype="float32", target_shape=(2,), target_dtype="float32")

    def target(self, index):
        return torch.zeros(2)


class Shared(Data):
    """The test data are the training's."""

    def __init__(self, options):
        self.train = self.test = self


class OneClass(Data):
    def target(self, index):
        return torch.tensor(1)


class MeanOf255(Data):
    facts = declared = DataFacts(shape=(4, 1, 1), classes=3, mean=(125.0,) * 4, std=(63.0,) * 4)


class NoDeviation(Data):
    facts = declared = DataFacts(shape=(4,), dtype="float32", classes=3, mean=(0.5,), std=(0.0,))


class TextLength(Data):
    def __len__(self):
        return "40"  # noqa: PLE0303  the mistake


class EmptyTest(Data):
    def __init__(self, options):
        super().__init__(options)
        self.test = EmptyTest.__new__(EmptyTest)

    def __len__(self):
        return 40 if hasattr(self, "train") else 0


class NoKeywordsOfFetch(Data):
    def fetch(self, indices):
        return super().fetch(indices, seed=0, epoch=0)


class NoTest(Data):
    def __init__(self, options):
        self.train = self


class Dense(Data):
    """A class for each of four places, as of pixels."""

    facts = declared = DataFacts(shape=(4,), dtype="float32", classes=3, target_shape=(4,))

    def target(self, index):
        return torch.arange(4) % 3


# --- others -----------------------------------------------------------------------------------------------------------


class Architectures:
    """What `build` names."""

    def returns_nothing(options, facts):
        return None

    def returns_tables(options, facts):
        return [{"name": "stem"}]

    def one_name_twice(options, facts):
        stem = NodeSpec(name="stem", block="linear-stem", options={"features": 6})
        return stem, stem, NodeSpec(name="head", block="pool-linear", options={"outputs": 3})


class Log:
    def __init__(self, options, run):
        pass

    def record(self, *, epoch, step, values):
        raise OSError("the log is full")

    def close(self):
        pass


class Back(Callback):
    def __init__(self, options):
        pass

    def epoch_ended(self, report):
        raise ValueError("it went wrong")


class StopsInVain(Callback):
    def __init__(self, options):
        pass

    def stops(self):
        return "enough"


class NoReport(Callback):
    def __init__(self, options):
        pass

    def epoch_ended(self):
        pass


class NoKeywords(Log):
    def record(self, epoch, values):
        pass


class NoLog:
    def __init__(self, options, run):
        pass


class Keeps(Callback):
    def __init__(self, options):
        self.parameters = {}

    def at_stage(self, parameters):
        self.parameters |= parameters


class WritesWeights(Keeps):
    def epoch_ended(self, report):
        with torch.no_grad():
            self.parameters["mine/linear.bias"].zero_()


class WritesData(Keeps):
    def trained(self, epoch, micro_batches, means):
        self.parameters["mine/linear.bias"].data.clamp_(-0.1, 0.1)


class NeverRestored(NoReport):
    epoch_ended = Callback.epoch_ended

    def state(self):
        return {"best": 1.0}


class NeverCloses(NoLog):
    def record(self, *, epoch, step, values):
        pass


class NoCallback:
    def __init__(self, options):
        pass


# --- declarations -----------------------------------------------------------------------------------------------------

HERE = __name__


def own(base):
    """Return the names of the classes that make one mistake each."""
    return [cls.__name__ for cls in base.__subclasses__() if cls.__module__ == HERE and cls is not Right]


def functions(namespace):
    return [name for name in vars(namespace) if not name.startswith("_")]


class Declared:
    """The declarations that entry points name, by kind and plugin."""

    blocks = SimpleNamespace(
        Right=BlockDeclaration(summary="x", build=f"{HERE}:Right", kind="reversible"),
        **{
            name: BlockDeclaration(summary="x", build=f"{HERE}:{name}", kind=kind)
            for base, kind in ((Right, "reversible"), (Reversible, "reversible"), (Buffered, "buffered"))
            for name in own(base)
        },
        Softmax=BlockDeclaration(summary="x", build=f"{HERE}:Softmax", kind="head"),
        NoBlock=BlockDeclaration(summary="x", build=f"{HERE}:NoBlock", kind="buffered"),
        Nowhere=BlockDeclaration(summary="x", build=f"{HERE}:Nowhere", kind="buffered"),
        Kindless=BlockDeclaration(summary="x", build=f"{HERE}:Bare", kind="bufered"),
        Newer=BlockDeclaration(summary="x", build=f"{HERE}:Bare", kind="buffered", api=7),
    )
    optimizers = SimpleNamespace(
        **{
            name: OptimizerDeclaration(summary="x", build=f"{HERE}:Optimizers.{name}", options=Rate)
            for name in functions(Optimizers)
        },
        whole_rate=OptimizerDeclaration(summary="x", build=f"{HERE}:Optimizers.forgets", options=WholeRate),
        wrong_default=OptimizerDeclaration(summary="x", build=f"{HERE}:Optimizers.forgets", options=WrongDefault),
        no_rate=OptimizerDeclaration(summary="x", build=f"{HERE}:Optimizers.forgets"),
    )
    losses = SimpleNamespace(
        **{name: LossDeclaration(summary="x", build=f"{HERE}:{name}") for name in own(Loss)},
        Learns=LossDeclaration(summary="x", build=f"{HERE}:Learns"),
        returns_nothing=LossDeclaration(summary="x", build=f"{HERE}:LrSchedules.returns_nothing"),
    )
    metrics = SimpleNamespace(
        **{name: MetricDeclaration(summary="x", build=f"{HERE}:{name}", share=True) for name in own(Metric)},
        Singleton=MetricDeclaration(summary="x", build=f"{HERE}:singleton"),
        Loss=MetricDeclaration(summary="x", build=f"{HERE}:Loss"),
        Wrong=MetricDeclaration(summary="x", build=f"{HERE}:PerCent", better="more"),
    )
    lr_schedules = SimpleNamespace(
        **{
            name: LrScheduleDeclaration(summary="x", build=f"{HERE}:LrSchedules.{name}")
            for name in functions(LrSchedules)
        }
    )
    datasets = SimpleNamespace(
        **{
            name: DataSetDeclaration(summary="x", build=f"{HERE}:{name}", facts=lambda _, one=cls: one.declared)
            for name, cls in ((cls.__name__, cls) for cls in Data.__subclasses__())
        },
        no_facts=DataSetDeclaration(summary="x", build=f"{HERE}:RowShort", facts=lambda _: None),
    )
    architectures = SimpleNamespace(
        **{
            name: ArchitectureDeclaration(summary="x", build=f"{HERE}:Architectures.{name}")
            for name in functions(Architectures)
        }
    )
    loggers = SimpleNamespace(
        **{
            name: LoggerDeclaration(summary="x", build=f"{HERE}:{name}")
            for name in ("Log", "NoKeywords", "NoLog", "NeverCloses")
        }
    )
    callbacks = SimpleNamespace(
        **{
            name: CallbackDeclaration(summary="x", build=f"{HERE}:{name}")
            for name in (
                "Back",
                "NoReport",
                "StopsInVain",
                "NoCallback",
                "WritesWeights",
                "WritesData",
                "NeverRestored",
            )
        }
    )


ENTRY_POINTS = "\n".join(
    f"[petra_graph.{kind}]\n" + "\n".join(f"{name} = {HERE}:Declared.{kind}.{name}" for name in vars(plugins))
    for kind, plugins in vars(Declared).items()
    if isinstance(plugins, SimpleNamespace)
)
