"""Code to paste for fixes that need more than a line. Each piece of code is run by a test."""

from __future__ import annotations


def files_in_memory(dataset: str, place: str) -> str:
    """Reads all files once; keeps their bytes in one tensor, which worker processes share."""
    return f"""\
import io, itertools, os, numpy, torch

class CachedFiles:
    def __init__(self, paths):
        sizes = map(os.path.getsize, paths)
        self.ends = list(itertools.accumulate(sizes, initial=0))
        self.bytes = torch.empty(self.ends[-1], dtype=torch.uint8)
        for path, start, end in zip(paths, self.ends, self.ends[1:]):
            data = numpy.fromfile(path, numpy.uint8)
            self.bytes[start:end] = torch.from_numpy(data)

    def open(self, index):
        start, end = self.ends[index : index + 2]
        return io.BytesIO(self.bytes[start:end].numpy())

# In {dataset}.__init__: self.files = CachedFiles(paths)
# Instead of opening paths[index]{place}: self.files.open(index)"""


def samples_in_memory(dataset: str) -> str:
    """Makes every sample once; keeps each field in one tensor, which worker processes share."""
    return f"""\
import torch

class CachedSamples(torch.utils.data.Dataset):
    def __init__(self, dataset):  # of tuples: arrays, tensors, numbers
        self.fields = [
            torch.empty(len(dataset), *x.shape[1:], dtype=x.dtype)
            for x in torch.utils.data.default_collate([dataset[0]])
        ]
        for index in range(len(dataset)):
            for field, value in zip(self.fields, dataset[index]):
                field[index] = torch.as_tensor(value)

    def __len__(self):
        return len(self.fields[0])

    def __getitem__(self, index):
        return tuple(field[index] for field in self.fields)

# {dataset}, before its DataLoader is created
dataset = CachedSamples(dataset)"""


def samples_on_disk(dataset: str) -> str:
    """Makes every sample once and keeps it in a file; later epochs and runs read the file."""
    return f"""\
import os, pathlib, torch

class CachedSamples(torch.utils.data.Dataset):
    def __init__(self, dataset, folder, augment=None):
        self.dataset, self.augment = dataset, augment
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        file = self.folder / f"{{index}}.pt"
        if not file.exists():
            part = file.with_suffix(f".{{os.getpid()}}")
            torch.save(self.dataset[index], part)
            part.replace(file)
        sample = torch.load(file, weights_only=False)
        return self.augment(sample) if self.augment else sample

# {dataset} without its random part, which goes into augment
dataset = CachedSamples(dataset, "cached-samples")"""


def batches_ahead() -> str:
    """Copies the next batch on a side stream while the step computes. Needs pinned batches."""
    return """\
def ahead(loader, device):
    stream, ready = torch.cuda.Stream(), None
    for batch in loader:
        with torch.cuda.stream(stream):
            coming = [x.to(device, non_blocking=True) for x in batch]
        if ready is not None:
            yield ready
        torch.cuda.current_stream().wait_stream(stream)
        for tensor in coming:
            tensor.record_stream(torch.cuda.current_stream())
        ready = coming
    if ready is not None:
        yield ready

for inputs, targets in ahead(loader, device):
    ..."""
