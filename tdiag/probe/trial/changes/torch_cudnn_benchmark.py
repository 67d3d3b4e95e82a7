"""cuDNN tries its convolution algorithms and keeps the fastest."""

from ..change import ROUNDING, Change, Trial, switch

NAME = "torch.cudnn_benchmark"


def install(trial: Trial, value: bool) -> None:
    import torch

    from ... import accelerator

    cudnn = torch.backends.cudnn
    if not (cudnn.is_available() and accelerator.cuda_possible()):
        trial.refused(NAME, "there is no device with cuDNN")
        return
    if cudnn.benchmark:
        trial.refused(NAME, "it is on already")
        return

    def on() -> None:  # again after warm-up: the script may have changed it
        cudnn.benchmark = True

    on()
    trial.probe.when_warm(on)
    trial.sets(NAME, "off → on")


CHANGE = Change(
    name=NAME,
    does="cuDNN tries its convolution algorithms and keeps the fastest.",
    safety=ROUNDING,
    parse=switch,
    absent="torch was not imported",
    limits="every new shape is tried again, so varying shapes make it slower",
    edit="torch.backends.cudnn.benchmark = True",
    install=install,
)
