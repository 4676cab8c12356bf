package image

import "runtime"

// architecture is what the images say they run on: the machine that they are made on.
const architecture = runtime.GOARCH
