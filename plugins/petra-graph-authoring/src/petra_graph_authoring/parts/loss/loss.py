from torch.nn import functional


class WideMargin:
    """Mean over samples of the multi-class margin loss of outputs [n, classes] against class indices [n]."""

    def __init__(self, options):
        self.margin = options.margin

    def __call__(self, output, target):
        return functional.multi_margin_loss(output.float(), target, margin=self.margin)

    def metrics(self, output, target):
        scores = output.detach().float()
        each = functional.multi_margin_loss(scores, target, margin=self.margin, reduction="none")
        return {"top1": (scores.argmax(1) == target).sum(), "separated": (each == 0).sum()}
