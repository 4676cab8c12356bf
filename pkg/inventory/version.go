package inventory

import (
	"strconv"
	"strings"
)

// semanticVersion gives a version of one to three numbers the form of Semantic Versioning 2.0.0, which the API wants: three numbers without
// leading zeros. So "550.163.01" becomes "550.163.1" and "12.4" becomes "12.4.0". It reports false for anything else.
func semanticVersion(version string) (string, bool) {
	parts := strings.Split(version, ".")
	if len(parts) > 3 {
		return "", false
	}
	numbers := []string{"0", "0", "0"}
	for i, part := range parts {
		// Unlike ParseInt, ParseUint takes no sign.
		number, err := strconv.ParseUint(part, 10, 63)
		if err != nil {
			return "", false
		}
		numbers[i] = strconv.FormatUint(number, 10)
	}
	return strings.Join(numbers, "."), true
}
