//! Words that travel as arguments.

use bytemuck::Zeroable;
use overtone_cuda::arguments::{UPLOAD_WORDS, UploadArguments};
use overtone_simt::{Schedule, kernel, launch};

use crate::host::Memory;

#[test]
fn words_arrive_and_the_launches_are_counted_from_0() {
    for count in [1, 255, UPLOAD_WORDS] {
        let (target, launches) = (Memory::filled(4 * UPLOAD_WORDS as u64, 0x7f), Memory::of(&[9_u64]));
        let mut arguments = UploadArguments::zeroed();
        arguments.target = target.address();
        arguments.launches = launches.address();
        arguments.word_count = count as u32;
        arguments.words = std::array::from_fn(|index| 3 * index as u32);
        let bytes = bytemuck::bytes_of(&arguments);
        // SAFETY: both addresses are of memory made for the launch.
        unsafe { launch(kernel("upload").unwrap(), [1, 1, 1], 256, 0, bytes, Schedule::Natural) }.unwrap();
        for (index, word) in target.read::<u32>(UPLOAD_WORDS).into_iter().enumerate() {
            assert_eq!(word, if index < count { 3 * index as u32 } else { 0x7f7f_7f7f });
        }
        assert_eq!(launches.read::<u64>(1), [0]);
    }
}
