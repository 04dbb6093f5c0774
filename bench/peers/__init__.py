"""What the engines that the benchmark compares with need: interpreters with their packages, models in their form, a process each."""
