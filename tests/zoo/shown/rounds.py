"""A process that makes the batches of a round, started anew for each round."""

import multiprocessing

import torch

ROUND, BATCH, WIDTH = 20, 256, 512


def make(queue: "multiprocessing.Queue[torch.Tensor]", seed: int) -> None:
    """The batches of one round."""
    random = torch.Generator().manual_seed(seed)
    for _ in range(ROUND):
        queue.put(torch.randn(BATCH, WIDTH, generator=random).numpy())


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seed = 0
    while True:
        queue = context.Queue(4)
        process = context.Process(target=make, args=(queue, seed), daemon=True)
        process.start()
        seed += 1
        for _ in range(ROUND):
            batch = torch.from_numpy(queue.get())
            loss = (model(batch) - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        process.join()


if __name__ == "__main__":
    train()
