"""Sums of squares of parameters in the loss: what they cost with their backward, beyond what an
optimizer's weight decay costs, by what their calls take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from constants import Figures, interleaved, measures

FORMS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "one by one": lambda made: sum(p.pow(2).sum() for p in made),
    "norms": lambda made: sum(p.norm() ** 2 for p in made),
    "joined": lambda made: torch.cat([p.view(-1) for p in made]).pow(2).sum(),
}
SIZES = ((8, 256), (4, 512), (4, 1024), (2, 2048))  # matrices, and their rows and columns


@measures(td748_penalty_in_the_loss__WITH_BACKWARD_LOW="least",
          td748_penalty_in_the_loss__WITH_BACKWARD_HIGH="most")  # fmt: skip
def penalties() -> Figures:
    figures = {}
    for count, size in SIZES:
        made = [torch.randn(size, size, requires_grad=True) for _ in range(count)]
        for p in made:
            p.grad = torch.randn(size, size)

        def decay(made: Any = made) -> None:
            torch._foreach_add([p.grad for p in made], made, alpha=0.01)

        for name, form in FORMS.items():

            def computed(form: Any = form, made: Any = made) -> Any:
                return form(made)

            calls, both, decayed = interleaved(
                computed, lambda computed=computed: computed().backward(), decay
            )
            figures[f"{name}, {count} of {size}"] = (both - decayed) / calls
    return figures
