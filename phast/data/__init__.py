"""Files, frames and arrays in; recordings of positions out.

In: CSV, TSV, Parquet and NPZ files, DataFrames, arrays, with units, gaps and irregular sampling.
Out: :class:`~phast.data.recording.Recording` and :class:`~phast.data.trajectories.Trajectories`, checked once.
Also here: coordinates on lines and circles, and how files are written.
"""
