"""FindMeIfYouCan's layout with tiny pictures, its traps included: text ids, id 0, gaps, no area, no objects, crowds."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

VOC = ("aeroplane", "bicycle", "bird")
BDD = ("pedestrian", "rider")


def write_fmiyc(root: Path, known_root: Path, *, images: int = 5, known: tuple[str, ...] = VOC, seed: int = 0) -> None:
    """All OOD sets below `root`; VOC's or BDD's training and test sets below `known_root`."""
    rng = np.random.default_rng(seed)
    coco, oi = {1: "bear", 17: "cat", 90: "toothbrush"}, {"/m/01": "Jellyfish", "0f3a": "Lamp"}
    for split, against in (("near", "voc"), ("far", "voc"), ("farther", "bdd")):
        folder = "new_images_wrt_bdd" if against == "bdd" else {"near": "near_images", "far": "new_images"}[split]
        write_set(root / f"COCO/annotations/{split}_coco_wrt_{against}.json", root / "COCO" / folder, coco, rng, images)
        write_set(
            root / f"OpenImages/COCO-Format/{split}_oi_wrt_{against}.json",
            root / "OpenImages" / folder,
            oi,
            rng,
            images,
            text_ids=True,
        )
    categories = {3 * i + 1: name for i, name in enumerate(known)}
    voc = known is VOC
    for split, number in (("train", 2 * images), ("test", images)):
        name = {"train": "voc0712_train_all", "test": "val_coco_format"}[split] if voc else f"{split}_bdd_converted"
        pictures = "JPEGImages" if voc else f"images/100k/{split}"
        write_set(
            known_root / f"{name.replace('test_bdd', 'val_bdd')}.json", known_root / pictures, categories, rng, number
        )


def write_set(file, pictures, categories, rng, number, *, text_ids=False) -> None:
    """One set: sizes differ, the first image has no object, the last annotation is a crowd, areas are missing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pictures.mkdir(parents=True, exist_ok=True)
    entries, annotations = [], []
    for i in range(number):
        width, height = (int(v) for v in rng.integers(36, 64, 2))
        identity = f"{rng.integers(16**8):08x}{i:08x}" if text_ids else 1000 + 7 * i
        name = f"{file.stem}_{i:03d}.png"
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(pictures / name)
        entries.append({"id": identity, "file_name": name, "width": width, "height": height})
        for _ in range(0 if i == 0 else int(rng.integers(1, 4))):
            x, y = rng.integers(0, 18, 2).tolist()
            annotations.append(
                {
                    "id": len(annotations),  # from 0 on
                    "image_id": identity,
                    "category_id": list(categories)[int(rng.integers(len(categories)))],
                    "bbox": [x, y, 16, 14],
                    "iscrowd": 0,
                }
            )
    annotations[-1]["iscrowd"] = 1
    content = {
        "images": entries,
        "annotations": annotations,
        "categories": [{"id": identity, "name": name} for identity, name in categories.items()],
    }
    file.write_text(json.dumps(content))
