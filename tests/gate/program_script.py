"""Exported gates in a process that has no oodlit: each over the same images, one by one and together."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import torch


def main(folder: Path) -> None:
    sys.modules["oodlit"] = None  # type: ignore[assignment]  # whoever imports it from here on fails
    images = torch.load(folder / "images.pt")
    found = {}
    for file in sorted(folder.glob("*.pt2")):
        program = torch.export.load(file).module()
        with torch.no_grad():
            whole = program(images)
            alone = program(images[:1])
        found[file.stem] = {name: value.tolist() for name, value in whole.items()}
        found[file.stem]["alone"] = alone["score"].item()
    for file in sorted(folder.glob("*.onnx")):
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]

        def ask(batch: torch.Tensor, session=session, names=names) -> dict[str, np.ndarray]:
            return dict(zip(names, session.run(names, {"images": batch.numpy()}), strict=True))

        found[file.name] = {name: value.tolist() for name, value in ask(images).items()}
        found[file.name]["alone"] = ask(images[:1])["score"].item()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
