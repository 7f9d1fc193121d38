//! Files of drafts: read back as they were written, found beside the weights, and refused for their one cause.

use super::*;
use crate::checkpoint::drafts::{self, DraftName, Drafts, FitRecord, RECORD};
use crate::checkpoint::tensor_file::ElementType;

const FIT: FitRecord = FitRecord { frames: 4000, ridge: 0.01 };

/// The small checkpoint, and a place for its drafts beside it.
struct Fixture {
    directory: TempDir,
    checkpoint: Checkpoint<'static>,
}

impl Fixture {
    fn new() -> Self {
        let directory = directory(&small_config(), &small_tensors());
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        Self { directory, checkpoint }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join(drafts::FILE_NAME)
    }

    fn write(&self, float_type: FloatType, tensors: &Tensors) -> Result<(), CheckpointError> {
        drafts::write(&self.file(), &self.checkpoint, float_type, FIT, tensors)
    }

    fn open(&self) -> Result<Drafts, CheckpointError> {
        Drafts::open(&self.file(), &self.checkpoint)
    }

    /// A file like the one that `write` makes, with another record and other tensors.
    fn forge(&self, record: &str, tensors: &Tensors) {
        let pending = tensor_file::pending(&self.file(), (RECORD, record), tensors).unwrap();
        pending.publish(pending_file::Existing::Replace).unwrap();
    }

    /// The record that `write` makes.
    fn record(&self) -> Value {
        self.write(FloatType::Float32, &small_drafts()).unwrap();
        serde_json::from_str(MappedFile::open(&self.file()).unwrap().note(RECORD).unwrap()).unwrap()
    }

    /// The error of opening a file that must not open. Its message names file and tensor.
    fn refused(&self) -> CheckpointError {
        let error = self.open().expect_err("must be refused");
        let message = error.to_string();
        assert!(message.contains(&error.file().unwrap().display().to_string()), "{message}");
        assert!(error.tensor().is_none_or(|tensor| message.contains(tensor)), "{message}");
        error
    }

    /// The error of a file whose tensors were changed.
    fn refused_tensors(&self, change: impl FnOnce(&mut Tensors)) -> CheckpointError {
        let record = self.record().to_string();
        let mut tensors = small_drafts();
        change(&mut tensors);
        self.forge(&record, &tensors);
        self.refused()
    }
}

/// Drafts of [`small_spec`]: j = 1 alone, every element different from every other and exact in every type.
fn small_drafts() -> Tensors {
    let mut next = 0.0;
    let tensor = |name: DraftName| {
        let shape = name.shape(&small_spec()).to_vec();
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| (next, next += 0.5).0).collect();
        (name.to_string(), FileTensor::from_f32(shape, &values))
    };
    DraftName::all(&small_spec()).map(tensor).collect()
}

macro_rules! assert_cause {
    ($error:expr, $pattern:pat $(if $guard:expr)?) => {
        let error = $error;
        assert!(matches!(&error, $pattern $(if $guard)?), "{error:?}");
    };
}

#[test]
fn drafts_are_read_back_as_they_were_written() {
    for float_type in [FloatType::Float32, FloatType::Float16, FloatType::BFloat16] {
        let fixture = Fixture::new();
        assert_eq!(Drafts::beside(fixture.directory.path()), None);
        fixture.write(float_type, &small_drafts()).unwrap();
        assert_eq!(Drafts::beside(fixture.directory.path()), Some(fixture.file()));
        let drafts = fixture.open().unwrap();
        assert_eq!((drafts.float_type(), drafts.record()), (float_type, FIT));
        for (name, shape) in [(DraftName::Head(1), [5, 4]), (DraftName::Table(1), [5, 5])] {
            let expected = small_drafts()[&name.to_string()].to_f32().unwrap();
            drafts
                .read(name, |tensor| {
                    assert_eq!((tensor.float_type, tensor.shape), (float_type, &shape[..]));
                    let values: Vec<f32> = (0..expected.len()).map(|index| tensor.get(index)).collect();
                    assert_eq!(values, expected);
                })
                .unwrap();
        }
    }
}

#[test]
fn equal_drafts_make_equal_files() {
    let fixture = Fixture::new();
    let [first, second] = [(), ()].map(|()| {
        fixture.write(FloatType::BFloat16, &small_drafts()).unwrap();
        fs::read(fixture.file()).unwrap()
    });
    assert!(first == second);
}

#[test]
fn drafts_beside_the_only_weights_are_no_weights() {
    let fixture = Fixture::new();
    let path = |name: &str| fixture.directory.path().join(name);
    fixture.write(FloatType::Float32, &small_drafts()).unwrap();
    fs::rename(path("model.safetensors"), path("any.safetensors")).unwrap();
    assert_holds(&Checkpoint::open(fixture.directory.path()).unwrap(), &small_tensors());
    fs::remove_file(path("any.safetensors")).unwrap();
    assert_cause!(refused(fixture.directory.path()), CheckpointError::NoWeights { .. });
}

#[test]
fn the_fingerprint_is_of_the_heads_values_alone() {
    let fixture = Fixture::new();
    fixture.write(FloatType::Float32, &small_drafts()).unwrap();
    let open_with = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = small_tensors();
        change(&mut tensors);
        let other = directory(&small_config(), &tensors);
        Drafts::open(&fixture.file(), &Checkpoint::open(other.path()).unwrap())
    };
    let stored_as = |tensors: &mut Tensors, float_type: FloatType, key: &str| {
        let tensor = &tensors[key];
        let mut bytes = vec![0; tensor.to_f32().unwrap().len() * float_type.size()];
        for (index, value) in tensor.to_f32().unwrap().into_iter().enumerate() {
            float_type.narrow(value, &mut bytes, index);
        }
        let shape = tensor.shape.clone();
        let narrowed =
            FileTensor { element_type: ElementType::Float(float_type), shape, bytes: bytes.into() };
        tensors.insert(key.to_owned(), narrowed);
    };
    open_with(&|tensors| stored_as(tensors, FloatType::Float16, "lm_head.1.weight")).unwrap();
    open_with(&|tensors| {
        drop(tensors.insert("model.norm.weight".into(), FileTensor::from_f32(vec![4], &[3.0; 4])))
    })
    .unwrap();
    let error = open_with(&|tensors| {
        let mut values = tensors["lm_head.1.weight"].to_f32().unwrap();
        values[7] += 1.0;
        tensors.insert("lm_head.1.weight".to_owned(), FileTensor::from_f32(vec![5, 4], &values));
    });
    let error = error.expect_err("other heads");
    assert_cause!(&error, CheckpointError::ForeignDrafts { found, expected, .. } if found.len() == 64 && expected.len() == 64);
    assert_eq!(error.file(), Some(fixture.file().as_path()));
    assert!(error.to_string().contains("overtone fit-drafts"), "{error}");
}

#[test]
fn a_file_without_a_usable_record_is_refused() {
    let fixture = Fixture::new();
    let record = fixture.record();
    tensor_file::write(&fixture.file(), &small_drafts()).unwrap();
    assert_cause!(fixture.refused(), CheckpointError::DraftsRecord { key, found, .. } if key == RECORD && found == "not there");
    for text in ["", "{", "[]", "null", "7", &"[".repeat(100_000)] {
        fixture.forge(text, &small_drafts());
        assert_cause!(fixture.refused(), CheckpointError::DraftsRecord { key, .. } if key == RECORD);
    }
    for (key, values) in [
        ("version", vec![json!(2), json!("1"), json!(1.5), json!(null)]),
        ("residual_codebooks", vec![json!(3), json!(-2)]),
        ("codebook_size", vec![json!(4)]),
        ("hidden_size", vec![json!(1_u64 << 60)]),
        ("heads_sha256", vec![json!(1)]),
        ("frames", vec![json!(-1), json!("many")]),
        ("ridge", vec![json!(-0.5), json!("little")]),
    ] {
        for value in values.into_iter().map(Some).chain([None]) {
            let mut record = record.clone();
            let found = value.as_ref().map_or_else(|| "not there".to_owned(), Value::to_string);
            match value {
                Some(value) => record[key] = value,
                None => drop(record.as_object_mut().unwrap().remove(key)),
            }
            fixture.forge(&record.to_string(), &small_drafts());
            let error = fixture.refused();
            assert_cause!(&error, CheckpointError::DraftsRecord { key: named, .. } if *named == format!("{RECORD}.{key}"));
            assert_eq!(error.found(), Some(found));
        }
    }
}

#[test]
fn every_tensor_must_be_there_with_its_shape_and_nothing_else() {
    let fixture = Fixture::new();
    for key in small_drafts().into_keys() {
        let error = fixture.refused_tensors(|tensors| drop(tensors.remove(&key)));
        assert_cause!(&error, CheckpointError::MissingTensor { .. });
        assert_eq!(error.tensor(), Some(key.as_str()));
        let error = fixture.refused_tensors(|tensors| tensors.get_mut(&key).unwrap().shape.insert(0, 1));
        assert_cause!(&error, CheckpointError::Shape { site, .. } if site.tensor == key);
    }
    let error =
        fixture.refused_tensors(|tensors| tensors.get_mut("draft_head.1.weight").unwrap().shape.reverse());
    assert_eq!((error.found().as_deref(), error.expected().as_deref()), (Some("[4, 5]"), Some("[5, 4]")));
    for key in ["draft_head.2.weight", "draft_table.0", "draft_table.01", "draft_head.1.bias", ""] {
        let error = fixture.refused_tensors(|tensors| {
            drop(tensors.insert(key.to_owned(), FileTensor::from_f32(vec![1], &[0.0])));
        });
        assert_cause!(&error, CheckpointError::UnknownTensor { site, .. } if site.tensor == key);
        assert!(error.expected().unwrap().contains("j from 1 to 1"), "{error}");
    }
}

#[test]
fn every_tensor_must_be_of_the_same_floating_point_type() {
    let fixture = Fixture::new();
    let error = fixture.refused_tensors(|tensors| {
        tensors.get_mut("draft_table.1").unwrap().element_type = ElementType::Int32;
    });
    assert_cause!(&error, CheckpointError::Type { found, .. } if found == "I32");
    let error = fixture.refused_tensors(|tensors| {
        let tensor = tensors.get_mut("draft_table.1").unwrap();
        tensor.element_type = ElementType::Float(FloatType::Float16);
        tensor.bytes = vec![0; 50].into();
    });
    assert_cause!(&error, CheckpointError::Type { found, expected: "float32", .. } if found == "float16");
    assert_eq!(error.tensor(), Some("draft_table.1"));
}

#[test]
fn a_value_that_is_not_finite_is_found_when_it_is_read() {
    let fixture = Fixture::new();
    let record = fixture.record().to_string();
    let mut tensors = small_drafts();
    tensors.insert("draft_table.1".to_owned(), FileTensor::from_f32(vec![5, 5], &[f32::NAN; 25]));
    fixture.forge(&record, &tensors);
    let drafts = fixture.open().unwrap();
    drafts.read(DraftName::Head(1), |_| ()).unwrap();
    let error = drafts.read(DraftName::Table(1), |_| ()).expect_err("NaN");
    assert_cause!(&error, CheckpointError::NotFinite { site, .. } if site.tensor == "draft_table.1");
    let error = drafts.read(DraftName::Table(2), |_| ()).expect_err("no such codebook");
    assert_cause!(error, CheckpointError::MissingTensor { .. });
}

#[test]
fn what_cannot_be_drafts_is_not_written() {
    let fixture = Fixture::new();
    let refused = |float_type, change: &dyn Fn(&mut Tensors)| {
        let mut tensors = small_drafts();
        change(&mut tensors);
        let error = fixture.write(float_type, &tensors).expect_err("must be refused");
        assert!(!fixture.file().exists());
        error
    };
    let change = |key: &'static str, tensor: FileTensor<'static>| {
        move |tensors: &mut Tensors| drop(tensors.insert(key.to_owned(), tensor.clone()))
    };
    let error = refused(FloatType::Float32, &|tensors| drop(tensors.remove("draft_table.1")));
    assert_cause!(error, CheckpointError::MissingTensor { .. });
    let error =
        refused(FloatType::Float32, &change("draft_table.2", FileTensor::from_f32(vec![5, 5], &[0.0; 25])));
    assert_cause!(error, CheckpointError::UnknownTensor { .. });
    let error =
        refused(FloatType::Float32, &change("draft_table.1", FileTensor::from_f32(vec![5, 4], &[0.0; 20])));
    assert_cause!(error, CheckpointError::Shape { .. });
    let error =
        refused(FloatType::Float32, &change("draft_table.1", FileTensor::from_i32(vec![5, 5], &[0; 25])));
    assert_cause!(error, CheckpointError::Type { .. });
    // Finite in float32, and not in the type that was asked for.
    let error =
        refused(FloatType::Float16, &change("draft_table.1", FileTensor::from_f32(vec![5, 5], &[7e4; 25])));
    assert_cause!(error, CheckpointError::NotFinite { .. });
}

#[test]
fn damaged_and_missing_files_are_refused() {
    let fixture = Fixture::new();
    assert_cause!(fixture.refused(), CheckpointError::FileNotFound { .. });
    fixture.write(FloatType::Float32, &small_drafts()).unwrap();
    let whole = fs::read(fixture.file()).unwrap();
    for bytes in [&[][..], &whole[..9], &whole[..whole.len() - 1], &[&whole[..], &[0]].concat()] {
        fs::write(fixture.file(), bytes).unwrap();
        assert_cause!(fixture.refused(), CheckpointError::Header { .. });
    }
}
