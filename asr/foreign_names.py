"""Names of settings in other toolkits, such as ESPnet, SpeechBrain and Hugging Face, and ours for each."""

from __future__ import annotations

# Ours, or its end (`encoder.dim`); then what others call it.
_NAMES = {
    "output_dir": (
        "output_folder outdir exp_dir expdir save_dir save_folder model_dir work_dir run_dir log_dir"
    ),
    "seed": "random_seed manual_seed",
    "start_from": "pretrained pretrained_model init_param init_from checkpoint model_name_or_path resume",
    # sections
    "data": "dataset datasets dataset_conf",
    "features": "frontend frontend_conf feature_extractor fbank_conf preprocessor",
    "augment": "augmentation augmentations",
    "batches": "dataloader dataloader_opts sampler batch",
    "optim": "optimizer optimiser optim_conf adam",
    "train": "training trainer training_args training_arguments",
    "model.encoder": "encoder encoder_conf",
    "model.decoder": "decoder decoder_conf",
    # data and how it is read
    "data.train": (
        "train_manifest train_manifests train_json train_csv train_file train_data train_set train_ds"
    ),
    "data.dev": (
        "valid validation dev_manifest valid_manifest valid_json valid_csv valid_data valid_set "
        "cv_data validation_file validation_ds eval_data eval_dataset dev_data dev_set"
    ),
    "tokenizer.type": "token_type tokenizer_type",
    "tokenizer.vocab_size": "nbpe bpe_size vocab vocabulary_size num_tokens output_neurons n_vocab",
    "features.num_mels": (
        "n_mels n_mel num_mel_bins mel_bins feature_size num_features feat_dim idim input_size"
    ),
    "features.sample_rate": "fs sr sampling_rate samplerate resample_rate",
    "features.window_ms": "win_length window_size window_length frame_length n_fft",
    "features.shift_ms": "hop_length hop_size frame_shift window_stride",
    "features.num_ceps": "n_mfcc num_mfcc",
    "features.cmvn": "global_cmvn cmvn_file normalize normalise",
    "augment.speed": "speed_perturb speed_perturbation speed_factors",
    "augment.spec_augment": (
        "specaug spec_aug specaugment spec_aug_conf spec_augmentation apply_spec_augment"
    ),
    "batches.max_utterances": "batch_size train_batch_size per_device_train_batch_size mini_batch_size",
    "batches.max_seconds": (
        "batch_bins batch_duration max_batch_length max_frames_in_batch max_tokens_in_batch"
    ),
    "batches.max_utterance_seconds": "max_length max_duration max_duration_in_seconds avoid_if_longer_than",
    "batches.min_seconds": "min_length min_duration min_duration_in_seconds avoid_if_shorter_than",
    "batches.num_workers": "workers dataloader_num_workers preprocessing_num_workers",
    # training
    "optim.learning_rate": "lr base_lr max_lr peak_lr init_lr lr_adam",
    "optim.warmup_steps": (
        "warmup warmup_step num_warmup_steps n_warmup_steps warmup_updates warmup_ratio warmup_epochs"
    ),
    "optim.schedule": "scheduler scheduler_conf lr_scheduler lr_scheduler_type lr_schedule lr_annealing",
    "optim.weight_decay": "wd l2",
    "optim.betas": "adam_beta1 adam_beta2 beta1 beta2",
    "train.steps": (
        "epochs max_epochs max_epoch num_epochs n_epochs number_of_epochs num_train_epochs "
        "max_steps num_steps total_steps max_updates num_updates max_iter iterations"
    ),
    "train.accumulate": (
        "accum_grad accumulate_grad_batches gradient_accumulation gradient_accumulation_steps "
        "grad_accumulation_factor"
    ),
    "train.clip_norm": "grad_clip clip_grad clip_grad_norm max_grad_norm gradient_clip_val grad_clip_norm",
    "train.precision": "fp16 bf16 amp use_amp auto_mix_prec mixed_precision dtype train_dtype torch_dtype",
    "train.device": "ngpu gpu gpus use_gpu num_gpus accelerator devices",
    "train.threads": "nthreads num_threads",
    "train.log_every": "log_interval logging_steps log_every_n_steps",
    "train.validate_every": "eval_steps eval_interval valid_interval val_check_interval",
    "train.save_every": "save_steps save_interval checkpoint_interval ckpt_interval_minutes",
    "train.keep_best": "keep_nbest_models average_num avg_checkpoints save_total_limit save_top_k",
    "train.patience": "early_stopping early_stopping_patience early_stop",
    "train.average_decay": "ema ema_decay",
    "train.select_by": "best_model_criterion metric_for_best_model monitor",
    # the model
    "model.ctc_weight": "ctc_alpha mtlalpha mtl_alpha",
    "model.label_smoothing": "lsm_weight label_smoothing_factor",
    "encoder.type": "encoder_type arch",
    "encoder.dim": (
        "d_model attention_dim hidden_size hidden_dim output_size embed_dim model_dim encoder_dim adim"
    ),
    "encoder.num_layers": "num_blocks n_layers n_layer layers elayers num_encoder_layers encoder_layers",
    "decoder.num_layers": "dlayers num_decoder_layers decoder_layers",
    "encoder.num_heads": "attention_heads num_attention_heads nhead n_heads n_head heads aheads",
    "encoder.feed_forward_dim": (
        "linear_units d_ffn ffn_dim intermediate_size ff_dim dim_feedforward eunits"
    ),
    "encoder.dropout": "dropout dropout_rate dropout_prob hidden_dropout",
    "encoder.kernel": "cnn_module_kernel kernel_size conv_kernel_size",
    "encoder.subsampling": "input_layer subsampling_factor",
    # decoding
    "decoding.beam": "beam_size beam_width num_beams",
    "decoding.nbest": "n_best num_return_sequences",
    "decoding.language_model_weight": "lm_weight lm_scale",
    "decoding.length_bonus": "penalty length_penalty word_insertion_penalty",
    "whisper.language": "lang",
    "whisper.prompt": "initial_prompt",
    "whisper.temperatures": "temperature",
    "whisper.max_no_speech": "no_speech_threshold",
    "checks.max_compression": "compression_ratio_threshold",
    "checks.min_log_probability": "logprob_threshold log_prob_threshold",
    "subtitles.line_width": "max_line_width",
    "subtitles.max_lines": "max_line_count",
    "segmentation.max_seconds": "chunk_length chunk_length_s chunk_size",
}

# A name that stands for several of ours, such as `dropout`, has the first of them that a config knows.
FOREIGN_NAMES: dict[str, list[str]] = {}
for _ours, _theirs in _NAMES.items():
    for _name in _theirs.split():
        FOREIGN_NAMES.setdefault(_name, []).append(_ours)
