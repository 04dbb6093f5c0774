"""What a graph and its code can be asked: profiles, the machine's limits, captured inputs, explanations, drawings."""
