"""As pytorch/examples/mnist_hogwild: processes that train one shared model, without a group."""

import sys

import torch
import torch.multiprocessing as mp


def train(rank, model, threads):
    torch.set_num_threads(threads)
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(256, 256), torch.randn(256, 1)
    for _ in range(1_000_000):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


if __name__ == "__main__":
    mp.set_start_method("spawn")
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    model.share_memory()
    ranks = [mp.Process(target=train, args=(i, model, int(sys.argv[1]))) for i in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    print("exit codes", [rank.exitcode for rank in ranks])
