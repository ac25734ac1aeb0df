"""The colors of the parts of a step in the pictures of docs/, by the names of a trace and of an account."""

COLORS = {"data": "#9d755d", "data wait": "#9d755d", "host to device": "#d8b5a5", "forward": "#4c78a8",
          "recompute": "#72b7b2", "loss": "#b279a2", "backward": "#f58518", "communication": "#e45756",
          "exposed communication": "#e45756", "optimizer": "#54a24b", "other device": "#eeca3b", "host": "#bab0ac",
          "idle": "#dddddd"}
