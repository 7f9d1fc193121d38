//! What is written: whole or not at all, the same for the same arguments, and read back as it was.

use std::borrow::Cow;
use std::ops::ControlFlow;

use proptest::prelude::*;

use super::*;
use crate::checkpoint::synthetic::{Architecture, write_synthetic};
use crate::checkpoint::tensor_file::ElementType;

fn write(directory: &Path, architecture: Architecture, seed: u64) -> Result<(), CheckpointError> {
    write_synthetic(directory, architecture, seed, 3, 2, &mut |_, _| ControlFlow::Continue(()))
}

fn files_of(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap()))
        .collect()
}

#[test]
fn a_synthetic_checkpoint_opens_with_its_architecture_and_frames() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/deep");
    write(&path, Architecture::Tiny, 7).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(*checkpoint.spec(), Architecture::Tiny.spec());
    assert!(contents(&checkpoint).values().all(Result::is_ok));
    assert_eq!(checkpoint.float_type(WeightName::CodeZeroTable), Some(FloatType::BFloat16));

    let frames = tensor_file::read(&path.join("frames.safetensors")).unwrap();
    assert_eq!(frames["talker_last_hidden"].shape, [3, 2, 64]);
    assert_eq!(frames["code_zero"].shape, [3, 2]);
    let codes = frames["code_zero"].to_i64().unwrap();
    assert!(codes.iter().all(|code| (0..96).contains(code)), "{codes:?}");
    for row in frames["talker_last_hidden"].to_f32().unwrap().chunks(64) {
        let mean_square = row.iter().map(|value| value * value).sum::<f32>() / 64.0;
        assert!((mean_square - 1.0).abs() < 1e-5, "{mean_square}");
    }
}

#[test]
fn synthetic_bytes_depend_on_the_arguments_alone() {
    let [first, second, other] = [7, 7, 8].map(|seed| {
        let directory = tempfile::tempdir().unwrap();
        let threads = rayon::ThreadPoolBuilder::new().num_threads(1 + seed as usize % 3).build().unwrap();
        threads.install(|| write(directory.path(), Architecture::Tiny, seed)).unwrap();
        files_of(directory.path())
    });
    assert_eq!(first.keys().collect::<Vec<_>>(), ["config.json", "frames.safetensors", "model.safetensors"]);
    assert!(first == second);
    assert_eq!(first["config.json"], other["config.json"]);
    for name in ["frames.safetensors", "model.safetensors"] {
        assert_ne!(first[name], other[name], "{name}");
    }
    // The numbers themselves are a promise too: checkpoints made by different versions must be comparable.
    let sum = first["model.safetensors"].iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    assert_eq!(sum, KNOWN_HASH, "{sum:#x}");
}

/// FNV-1a of the tiny architecture's weights under seed 7.
const KNOWN_HASH: u64 = 0x9542_84b1_7a18_5679;

#[test]
fn a_row_does_not_depend_on_how_many_there_are() {
    let [few, many] = [(3, 1), (150, 2)].map(|(frames, batch)| {
        let directory = tempfile::tempdir().unwrap();
        write_synthetic(directory.path(), Architecture::Tiny, 1, frames, batch, &mut |_, _| {
            ControlFlow::Continue(())
        })
        .unwrap();
        tensor_file::read(&directory.path().join("frames.safetensors")).unwrap()
    });
    for key in ["talker_last_hidden", "code_zero"] {
        assert!(many[key].bytes.starts_with(&few[key].bytes), "{key}");
    }
    let hidden = many["talker_last_hidden"].to_f32().unwrap();
    let mut rows: Vec<_> = hidden.chunks(64).map(|row| row[0].to_bits()).collect();
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rows.len(), 300);
}

#[test]
fn synthetic_configurations_tell_their_architecture() {
    for architecture in Architecture::ALL {
        let spec = architecture.spec();
        let config = synthetic::config_json(&spec).to_string();
        let read = Config::from_json(config.as_bytes(), None).unwrap();
        assert_eq!(read.talker_hidden_size(), Some(spec.talker_hidden_size));
        let expected = ModelSpec { projected: false, code_zero_size: None, ..spec };
        assert_eq!(read.complete().unwrap(), expected, "{architecture}");
        assert_eq!(architecture.name().parse(), Ok(architecture));
    }
    let error = "qwen3".parse::<Architecture>().expect_err("no such architecture");
    assert!(error.to_string().contains("qwen3-tts-0.6b"), "{error}");
}

#[test]
fn nothing_is_overwritten() {
    for name in ["config.json", "x.safetensors", "model.safetensors.index.json"] {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(name), "mine").unwrap();
        let error = write(directory.path(), Architecture::Tiny, 0).expect_err("there is a checkpoint");
        assert!(matches!(&error, CheckpointError::AlreadyExists { file } if file.ends_with(name)), "{error}");
        assert_eq!(files_of(directory.path()), BTreeMap::from([(name.to_owned(), b"mine".to_vec())]));
    }
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("README.md"), "mine").unwrap();
    write(directory.path(), Architecture::Tiny, 0).unwrap();
    assert_eq!(files_of(directory.path()).len(), 4);
}

#[test]
fn an_interrupted_writer_leaves_nothing_behind() {
    for stop_at in [0, 1, 20, usize::MAX] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new");
        let mut calls = 0;
        let mut progress = |done, total| {
            calls += 1;
            let stop = calls > stop_at || done == total;
            if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let error = write_synthetic(&path, Architecture::Tiny, 0, 1, 1, &mut progress).expect_err("stopped");
        assert!(matches!(error, CheckpointError::Interrupted { .. }), "{error}");
        assert!(files_of(directory.path()).is_empty());
        assert!(!path.exists());
    }
}

#[test]
fn progress_counts_every_byte_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    write_synthetic(directory.path(), Architecture::Tiny, 0, 1, 1, &mut |done, total| {
        seen.push((done, total));
        ControlFlow::Continue(())
    })
    .unwrap();
    let weights =
        Checkpoint::open(directory.path()).unwrap().stored_bytes().into_values().sum::<usize>() as u64;
    let stored = weights + 4 * (64 + 1);
    assert!(seen.is_sorted());
    assert_eq!((seen.first(), seen.last()), (Some(&(0, stored)), Some(&(stored, stored))));
}

#[test]
fn frames_that_cannot_be_are_refused() {
    for (frames, batch) in [(0, 1), (1, 0), (usize::MAX, 2), (1 << 60, 1)] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new");
        let result = write_synthetic(&path, Architecture::Tiny, 0, frames, batch, &mut |_, _| {
            ControlFlow::Continue(())
        });
        assert!(matches!(result, Err(CheckpointError::FrameCount { .. })));
        assert!(!path.exists());
    }
}

#[test]
fn a_file_in_place_of_the_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, "mine").unwrap();
    let error = write(&path, Architecture::Tiny, 0).expect_err("not a directory");
    assert!(matches!(error, CheckpointError::Write { .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"mine");
}

#[test]
fn a_tensor_file_that_cannot_be_written_leaves_the_old_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("codes.safetensors");
    let good = Tensors::from([("codes".to_owned(), FileTensor::from_i32(vec![2], &[1, 2]))]);
    tensor_file::write(&file, &good).unwrap();
    let bad = Tensors::from([("codes".to_owned(), FileTensor::from_i32(vec![3], &[1, 2]))]);
    let error = tensor_file::write(&file, &bad).expect_err("too short");
    assert!(matches!(error, CheckpointError::Layout { .. }), "{error}");
    assert_eq!(tensor_file::read(&file).unwrap(), good);
    assert_eq!(files_of(directory.path()).len(), 1);
    let error = tensor_file::write(&directory.path().join("no/such/place"), &good).expect_err("no directory");
    assert!(matches!(error, CheckpointError::Write { .. }), "{error}");
}

#[cfg(unix)]
#[test]
fn written_files_have_the_permissions_of_any_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let mode = |name: &str| fs::metadata(directory.path().join(name)).unwrap().permissions().mode();
    fs::write(directory.path().join("plain"), "x").unwrap();
    tensor_file::write(&directory.path().join("tensors"), &small_tensors()).unwrap();
    assert_eq!(mode("tensors"), mode("plain"));
}

#[test]
fn the_format_s_own_library_reads_what_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mixed.safetensors");
    let tensors = Tensors::from([
        ("codes".to_owned(), FileTensor::from_i32(vec![1, 3], &[5, -6, 7])),
        ("empty".to_owned(), FileTensor::from_f32(vec![0, 4], &[])),
        ("scalar".to_owned(), FileTensor::from_f32(vec![], &[2.5])),
    ]);
    tensor_file::write(&file, &tensors).unwrap();
    let bytes = fs::read(&file).unwrap();
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(read.len(), 3);
    for (key, tensor) in &tensors {
        let view = read.tensor(key).unwrap();
        assert_eq!((view.shape(), view.data()), (tensor.shape.as_slice(), &*tensor.bytes));
    }
    assert_eq!(tensors["codes"].to_i64(), Some(vec![5, -6, 7]));
    assert_eq!(tensors["codes"].to_f32(), None);
    assert_eq!(tensors["scalar"].to_i64(), None);
}

#[test]
fn every_tensor_starts_at_a_multiple_of_its_element() {
    let byte =
        FileTensor { element_type: ElementType::UInt8, shape: vec![3], bytes: Cow::Borrowed(&[1, 2, 3]) };
    let tensors = Tensors::from([
        ("a".to_owned(), byte),
        ("b".to_owned(), FileTensor::from_f32(vec![1], &[1.0])),
        (
            "c".to_owned(),
            FileTensor { element_type: ElementType::Int64, shape: vec![1], bytes: Cow::Borrowed(&[0; 8]) },
        ),
    ]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mixed.safetensors");
    tensor_file::write(&file, &tensors).unwrap();
    let bytes = fs::read(&file).unwrap();
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header % 8, 0);
    for (key, tensor) in &tensors {
        assert_eq!(metadata.info(key).unwrap().data_offsets.0 % tensor.element_type.size(), 0, "{key}");
    }
}

const ELEMENT_TYPES: [ElementType; 13] = [
    ElementType::Float(FloatType::Float32),
    ElementType::Float(FloatType::Float16),
    ElementType::Float(FloatType::BFloat16),
    ElementType::Float64,
    ElementType::Bool,
    ElementType::Int8,
    ElementType::Int16,
    ElementType::Int32,
    ElementType::Int64,
    ElementType::UInt8,
    ElementType::UInt16,
    ElementType::UInt32,
    ElementType::UInt64,
];

fn any_tensor() -> impl Strategy<Value = FileTensor<'static>> {
    let layout = (prop::sample::select(&ELEMENT_TYPES[..]), prop::collection::vec(0_usize..4, 0..4));
    layout.prop_flat_map(|(element_type, shape)| {
        let bytes = element_type.size() * shape.iter().product::<usize>();
        prop::collection::vec(any::<u8>(), bytes).prop_map(move |bytes| FileTensor {
            element_type,
            shape: shape.clone(),
            bytes: Cow::Owned(bytes),
        })
    })
}

proptest! {
    #[test]
    fn any_tensors_come_back_as_they_were_written(tensors in prop::collection::btree_map(".{1,8}", any_tensor(), 0..6)) {
        prop_assume!(!tensors.contains_key("__metadata__"));
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("any.safetensors");
        tensor_file::write(&file, &tensors).unwrap();
        prop_assert_eq!(tensor_file::read(&file).unwrap(), tensors);
    }
}
