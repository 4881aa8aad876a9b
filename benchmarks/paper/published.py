"""The numbers that the paper and its project page publish, each with where it stands.

All in percent. What is published as a picture alone, such as the training accuracies of Table 4, is not here.
"""

from __future__ import annotations

PAGE = "project page"

TABLE_1: dict[str, dict[str, tuple[float, float, float]]] = {
    "outcome": {"ALFWorld": (76.6, 71.1, 29.7), "ScienceWorld": (21.1, 13.7, 10.9)},
    "average(primitives)": {"ALFWorld": (88.1, 85.4, 30.5), "ScienceWorld": (37.9, 31.3, 18.0)},
    "GiGPO": {"ALFWorld": (86.7, 83.2, 48.0), "ScienceWorld": (25.8, 15.2, 4.7)},
    "RLVMR": {"ALFWorld": (89.1, 87.9, 56.3), "ScienceWorld": (46.9, 34.4, 26.5)},
    "DERL-base": {"ALFWorld": (91.0, 89.1, 65.0), "ScienceWorld": (47.7, 43.0, 30.1)},
    "DERL-full": {"ALFWorld": (91.8, 88.3, 76.4), "ScienceWorld": (98.2, 95.3, 31.3)},
}
"""Row -> world -> success rate of the final policy at L0, L1 and L2, Qwen2.5-1.5B-Instruct, mean over four seeds."""
TABLE_1_SOURCE = f"{PAGE}, table of agents; Table 1 of the paper, which has GiGPO and RLVMR from Zhang et al. (2025b)"

TABLE_2: dict[str, dict[str, dict[str, float]]] = {
    "MATH": {
        "outcome": {"gsm8k": 82.9, "math": 59.1},
        "outcome+format": {"gsm8k": 83.9, "math": 56.8},
        "average": {"gsm8k": 83.6, "math": 54.9},
        "DERL-base": {"gsm8k": 83.2, "math": 60.5},
        "DERL-full": {"gsm8k": 84.1, "math": 60.9},
    },
    "MATH and GSM8K": {
        "outcome": {"gsm8k": 82.6, "math": 58.8},
        "outcome+format": {"gsm8k": 86.4, "math": 55.9},
        "average": {"gsm8k": 86.5, "math": 55.8},
        "DERL-base": {"gsm8k": 87.0, "math": 60.2},
        "DERL-full": {"gsm8k": 87.6, "math": 60.2},
    },
}
"""Trained on -> reward -> benchmark -> exact match of the final policy, Qwen2.5-3B, mean over three seeds."""
TABLE_2_SOURCE = f"{PAGE}, table of mathematical reasoning; Table 2 of the paper"

TABLE_4: dict[str, float] = {
    "outcome": 75.82,
    "average": 76.12,
    "DERL-base": 79.22,
    "prompted (RLAIF)": 77.2,
    "random search": 76.5,
    "DERL-base, flip g2": 77.79,
    "DERL-base, remove g2": 78.39,
    "DERL-base, remove g3": 78.92,
    "DERL-base, remove g4": 77.94,
}
"""Row -> exact match of the final policy on GSM8K, Qwen2.5-1.5B."""
TABLE_4_SOURCE = f"{PAGE}, data of Figure 5; of the prompted proposer and random search: section 5.1 of the paper"

GROUP_SIZES: dict[int, float | tuple[float, float]] = {4: (78.92, 79.23), 6: (78.92, 79.23), 8: 79.22}
"""n -> the same for n programs per outer step; of 4 and 6 the text gives the range over the three sizes alone."""
GROUP_SIZES_SOURCE = "appendix F.4 of the paper"

FIGURE_3: dict[str, tuple[float, ...]] = {
    "DERL-base": (75.13, 76.60, 77.69, 77.13, 77.29, 78.28, 78.30),
    "prompted (RLAIF)": (76.88, 76.67, 76.40, 76.85, 76.45, 76.17, 76.95),
    "random search": (76.08, 74.90, 75.97, 54.58, 76.34, 75.16, 74.83),
}
"""Proposer -> per outer step, mean GSM8K test accuracy of its proposals' inner policies, Qwen2.5-1.5B, n = 8."""
FIGURE_3_SOURCE = f"{PAGE}, data of Figure 3"

FIGURE_4: dict[str, dict[str, tuple[float, ...]]] = {
    "ALFWorld (L2)": {
        "validation": (
            *(51.9, 72.2, 64.8, 72.9, 73.4, 75.0, 70.7, 83.3),
            *(86.4, 54.6, 73.4, 85.7, 85.2, 68.2, 86.9, 86.2),
        ),
        "test": (
            *(30.5, 41.7, 41.2, 45.0, 45.3, 45.0, 40.7, 44.5),
            *(54.5, 34.0, 43.2, 51.8, 54.9, 43.4, 51.7, 55.1),
        ),
    },
    "GSM8K": {
        "validation": (67.8, 83.0, 96.6, 96.6, 96.4, 96.8, 96.8, 96.5),
        "test": (59.5, 73.5, 86.2, 86.0, 86.4, 86.2, 86.4, 86.2),
    },
    "MATH": {
        "validation": (48.2, 59.6, 68.9, 68.4, 67.8, 68.5, 69.2, 70.2),
        "test": (39.6, 48.9, 57.2, 56.5, 56.3, 56.5, 57.0, 59.0),
    },
}
"""Task -> per outer step, mean score of the inner policies trained with its n proposals."""
FIGURE_4_SOURCE = f"{PAGE}, data of Figure 4"

FIGURE_6: dict[str, tuple[float, ...]] = {
    "stable": (62.5, 75.0, 50.0, 75.0, 62.5, 75.0, 87.5, 87.5, 87.5),
    "unstable": (25.0, 12.5, 37.5, 12.5, 25.0, 0.0, 12.5, 0.0, 12.5),
    "invalid": (12.5, 12.5, 12.5, 12.5, 12.5, 25.0, 0.0, 12.5, 0.0),
}
"""Structure -> its share of the proposals per outer step, on ALFWorld L2; invalid is what the other two leave."""
FIGURE_6_SOURCE = f"{PAGE}, data of Figure 6 (a run on ALFWorld L2)"

FLOPS_PER_OUTER_STEP = (7e19, 9e19)
"""Of mathematics, eight inner runs of ten epochs: appendix H of the paper."""

AGENT_FLOPS_PER_OUTER_STEP = {"ALFWorld": (7.3e19, 40), "ScienceWorld": (1.9e20, 80)}
"""World -> of eight inner runs, and the epochs of each: appendix H of the paper."""
