//! The round stream: each piece by itself, on whatever memory holds, and whole bursts of a toy engine.
//!
//! | file | what it holds |
//! |---|---|
//! | [`rows`] | a stream's buffers on the host, row by row, and what each piece makes of a row, in plain Rust |
//! | [`pieces`] | cases of each piece, and the pieces on hostile memory |
//! | [`lengths`] | rollback through tables of lengths, and the seeds of the next drafts |
//! | [`bursts`] | bursts of a toy engine against its step-by-step loop |

mod bursts;
mod lengths;
mod pieces;
mod rows;
