"""Parameters as named arrays, and the optimiser that moves them."""

import numpy as np

from rft.language import Floats

Parameters = dict[str, Floats]


class Adam:
    """Adam with decoupled weight decay; its whole state can be saved and loaded."""

    def __init__(
        self, parameters: Parameters, *, learning_rate: float, weight_decay: float = 0.0
    ) -> None:
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self._count = 0
        self._mean = {name: np.zeros_like(value) for name, value in parameters.items()}
        self._square = {name: np.zeros_like(value) for name, value in parameters.items()}

    def move(self, parameters: Parameters, gradients: Parameters, *, norm_max: float = 1.0) -> None:
        """Move *parameters* in place, against gradients whose joint norm is cut to *norm_max*."""
        self._count += 1
        norm = float(np.sqrt(sum(float((g * g).sum()) for g in gradients.values())))
        scale = min(1.0, norm_max / (norm + 1e-8))
        fading = np.sqrt(1 - 0.999**self._count) / (1 - 0.9**self._count)
        for name, value in parameters.items():
            gradient = gradients[name] * np.float32(scale)
            mean, square = self._mean[name], self._square[name]
            mean += np.float32(0.1) * (gradient - mean)
            square += np.float32(0.001) * (gradient * gradient - square)
            value *= np.float32(1 - self.learning_rate * self.weight_decay)
            value -= np.float32(self.learning_rate * fading) * mean / (np.sqrt(square) + 1e-8)

    def state(self) -> Parameters:
        """Return everything that must be saved to go on exactly."""
        named = {f"mean.{name}": value for name, value in self._mean.items()}
        named |= {f"square.{name}": value for name, value in self._square.items()}
        return {**named, "count": np.array([self._count], dtype=np.float32)}

    def load(self, state: Parameters) -> None:
        """Go on from what `state` returned."""
        self._count = int(state["count"][0])
        self._mean = {name: state[f"mean.{name}"].copy() for name in self._mean}
        self._square = {name: state[f"square.{name}"].copy() for name in self._square}
