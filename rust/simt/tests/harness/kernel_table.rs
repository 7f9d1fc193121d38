//! How the build finds the kernels of a file.

#[path = "../../build/kernel_lines.rs"]
mod kernel_lines;

use kernel_lines::kernel_lines;

#[test]
fn kernels_are_found_where_a_line_begins_with_the_macro() {
    let source = "#define KERNEL(name) no\n  KERNEL(indented, A, 1, 1)\n// KERNEL(comment, A, 1, 1)\n\
                  KERNEL(first, FirstArguments, 256, 2) { body(args, 1); }\n\
                  KERNEL(second,\n       SecondArguments, (2 * size(3, 4)), 1) {\n}\n";
    let found = kernel_lines(source).unwrap();
    let texts: Vec<_> =
        found.iter().map(|line| [&*line.name, &*line.arguments, &*line.maximum_threads]).collect();
    assert_eq!(
        texts,
        [["first", "FirstArguments", "256"], ["second", "SecondArguments", "(2 * size(3, 4))"]]
    );
}

#[test]
fn a_kernel_line_that_cannot_be_read_is_an_error_with_its_line() {
    let error = kernel_lines("\nKERNEL(name, Arguments, 256) {}\n").unwrap_err();
    assert!(
        error.starts_with("line 2: KERNEL takes (name, Arguments, maximum_threads, minimum_blocks), found 3")
    );
    assert_eq!(kernel_lines("KERNEL(name, Arguments").unwrap_err(), "line 1: KERNEL( is not closed");
}
