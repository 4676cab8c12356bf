// Package journal keeps one durable record per prepared ResourceClaim, so that a plugin that was killed at any moment
// knows at its next start what it had promised.
//
// A record is one file, replaced as a whole: written to a temporary file in the same directory, synced, renamed, and
// the directory synced. After a power cut a record is therefore the old one or the new one. A file that cannot be read
// all the same is set aside as .corrupt and reported; it stops neither the plugin nor other claims.
package journal
