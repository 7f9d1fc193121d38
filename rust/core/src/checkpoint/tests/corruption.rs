//! Random damage: whatever it hits, a checkpoint is refused or reads what is in the file; it never panics.

use proptest::prelude::*;

use super::*;

/// Where the data of the small checkpoint begins.
fn data_start(bytes: &[u8]) -> usize {
    8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize
}

fn small_file() -> Vec<u8> {
    let directory = directory(&small_config(), &small_tensors());
    fs::read(directory.path().join("model.safetensors")).unwrap()
}

fn with_files(files: &[(&str, &[u8])]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("config.json"), small_config().to_string()).unwrap();
    for (name, bytes) in files {
        fs::write(directory.path().join(name), bytes).unwrap();
    }
    directory
}

/// Opens, reads everything that opens, and returns it.
fn survivors(directory: &Path) -> Option<BTreeMap<WeightName, Result<Vec<u8>, CheckpointError>>> {
    match Checkpoint::open(directory) {
        Ok(checkpoint) => Some(contents(&checkpoint)),
        Err(error) => {
            // Its message can be made, whatever is in it.
            assert!(!error.to_string().is_empty());
            let _ = (error.file(), error.tensor(), error.found(), error.expected());
            None
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A header may survive where the damage hits what is not ours (metadata, padding), or swaps tensors of one
    /// shape: what is read then lies in the file, as long as it should be.
    #[test]
    fn damage_to_the_header_is_refused_or_reads_what_is_there(
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = small_file();
        let end = data_start(&bytes);
        for (place, byte) in hits {
            bytes[place.index(end)] = byte;
        }
        let directory = with_files(&[("model.safetensors", &bytes)]);
        if let Some(contents) = survivors(directory.path()) {
            let data: Vec<Vec<u8>> = small_tensors().into_values().map(|tensor| tensor.bytes.into_owned()).collect();
            for (name, found) in contents {
                // Under a damaged type the same bytes may not be finite.
                if let Ok(found) = found {
                    prop_assert!(data.contains(&found), "{}", name);
                }
            }
        }
    }

    #[test]
    fn damage_to_the_data_reads_as_the_bytes_that_are_there_or_is_not_finite(
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..9),
    ) {
        let mut bytes = small_file();
        let start = data_start(&bytes);
        let length = bytes.len() - start;
        for (place, byte) in hits {
            bytes[start + place.index(length)] = byte;
        }
        let directory = with_files(&[("model.safetensors", &bytes)]);
        let stored = tensor_file::read(&directory.path().join("model.safetensors")).unwrap();
        let contents = survivors(directory.path());
        for (name, found) in contents.expect("the header is sound") {
            let expected = &stored[&key(name)].bytes;
            match found {
                Ok(found) => prop_assert_eq!(&found, &**expected),
                Err(error) => {
                    let finite = stored[&key(name)].to_f32().unwrap().iter().all(|value| value.is_finite());
                    let is_not_finite = matches!(error, CheckpointError::NotFinite { .. });
                    prop_assert!(is_not_finite && !finite);
                }
            }
        }
    }

    #[test]
    fn a_file_cut_anywhere_is_refused(place in any::<prop::sample::Index>()) {
        let bytes = small_file();
        let directory = with_files(&[("model.safetensors", &bytes[..place.index(bytes.len())])]);
        prop_assert!(survivors(directory.path()).is_none());
    }

    #[test]
    fn damage_to_the_index_is_refused_or_loads_the_same_tensors(
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let map: BTreeMap<String, &str> = small_tensors().into_keys().map(|key| (key, "a.safetensors")).collect();
        let mut index = json!({ "metadata": { "total_size": 1 }, "weight_map": map }).to_string().into_bytes();
        for (place, byte) in hits {
            let length = index.len();
            index[place.index(length)] = byte;
        }
        let directory = with_files(&[("a.safetensors", &small_file()), ("model.safetensors.index.json", &index)]);
        if let Some(contents) = survivors(directory.path()) {
            for (name, found) in contents {
                prop_assert_eq!(&found.unwrap(), &*small_tensors()[&key(name)].bytes);
            }
        }
    }

    #[test]
    fn damage_to_the_configuration_never_panics(
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut config = small_config().to_string().into_bytes();
        for (place, byte) in hits {
            let length = config.len();
            config[place.index(length)] = byte;
        }
        let directory = with_files(&[("model.safetensors", &small_file())]);
        fs::write(directory.path().join("config.json"), config).unwrap();
        if let Some(contents) = survivors(directory.path()) {
            for (name, found) in contents {
                prop_assert_eq!(&found.unwrap(), &*small_tensors()[&key(name)].bytes);
            }
        }
    }
}
