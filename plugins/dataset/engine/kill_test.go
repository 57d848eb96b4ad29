package engine_test

const stepVar = "DATASET_STEP"

func step() int { return 0 }
