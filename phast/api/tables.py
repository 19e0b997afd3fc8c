"""Results into files: the same columns as CSV or Parquet, arrays as NPZ."""

import os
from pathlib import Path

import numpy as np
import pandas as pd

from phast.data.files import TABLES, check_ending, replacing


def write_table(path: str | os.PathLike, frame: pd.DataFrame, arrays: dict[str, np.ndarray]) -> Path:
    """``frame`` as .csv or .parquet, or ``arrays`` as .npz: whole or not at all."""
    path = check_ending(path, TABLES)
    with replacing(path) as file:
        if path.suffix == ".csv":
            frame.to_csv(file, index=False)
        elif path.suffix == ".parquet":
            frame.to_parquet(file, index=False)
        else:
            np.savez(file, allow_pickle=False, **arrays)
    return path
