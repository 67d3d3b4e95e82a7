"""Two workers of a stream each work on all items, and then drop the other's."""

from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


def spectrum(seed: int) -> torch.Tensor:
    wave = np.random.default_rng(seed).standard_normal(60_000)
    return torch.from_numpy(np.abs(np.fft.rfft(wave))[:256].astype(np.float32))


class Waves(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        assert info is not None
        for i in range(1_000_000):
            made = spectrum(i)
            if i % info.num_workers == info.id:
                yield made


if __name__ == "__main__":
    torch.set_num_threads(1)
    net = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    for x in DataLoader(Waves(), batch_size=8, num_workers=2):
        loss = (net(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
