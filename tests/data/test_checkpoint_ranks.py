"""Several ranks: each saves its part, loads in any placement, and hears of failures."""

from pathlib import Path

from .forking import Forks, forks

__all__ = ["forks"]


def test_tensors_are_resharded_at_load(forks: Forks, tmp_path: Path) -> None:
    """Saved in rows, columns or copies, loaded in any of these; torch's classes agree."""
    forks.run("ranks", "resharded", tmp_path)


def test_all_ranks_hear_that_one_could_not_save(forks: Forks, tmp_path: Path) -> None:
    forks.run("ranks", "one_rank_fails", tmp_path)


def test_saves_in_a_process_of_their_own(forks: Forks, tmp_path: Path) -> None:
    forks.run("ranks", "in_process", tmp_path)
